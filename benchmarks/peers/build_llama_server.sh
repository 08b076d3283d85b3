#!/bin/sh
# Builds llama-server from the llama.cpp vendored in our binding's sdist, so that both servers run the same
# kernels. The result is build/peers/llama-server (git-ignored); if it exists, nothing is done.
#
#   benchmarks/peers/build_llama_server.sh [JOBS]      JOBS: parallel compile jobs (default 2)
#
# Native build, with the AMX intrinsics of our binding: those of older compilers crash. No web UI (its assets would
# be downloaded), no TLS.
set -eu

VERSION=0.3.36
JOBS=${1:-2}
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PEERS=$ROOT/build/peers
PYTHON=$ROOT/.venv/bin/python
SOURCE=$PEERS/llama_cpp_python-$VERSION/vendor/llama.cpp

test -x "$PEERS/llama-server" && { echo "$PEERS/llama-server is already built"; exit 0; }
mkdir -p "$PEERS"
cd "$PEERS"
if [ ! -f "llama_cpp_python-$VERSION.tar.gz" ]; then
  echo "[1/4] downloading the sdist of llama-cpp-python $VERSION"
  "$PYTHON" -m pip download -qq --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    "llama-cpp-python==$VERSION"
fi
if [ ! -f "$SOURCE/CMakeLists.txt" ]; then
  echo "[2/4] unpacking its llama.cpp"
  tar xzf "llama_cpp_python-$VERSION.tar.gz" "llama_cpp_python-$VERSION/vendor/llama.cpp"
fi
echo "[3/4] configuring"
cmake -S "$SOURCE" -B "$PEERS/llama.cpp-build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DCMAKE_CXX_FLAGS="-include '$ROOT/tools/amx_tiles.h'" \
  -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >configure.log
echo "[4/4] compiling llama-server with $JOBS jobs (10 to 30 minutes on two cores)"
cmake --build "$PEERS/llama.cpp-build" --target llama-server --parallel "$JOBS"
cp "$PEERS/llama.cpp-build/bin/llama-server" "$PEERS/llama-server"
"$PEERS/llama-server" --version
