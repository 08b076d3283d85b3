#!/bin/sh
# An environment with `python -m llama_cpp.server`, the serial server of our binding: build/peers/llama-cpp-python.
# It uses the compiled binding of .venv, so that nothing is compiled twice and the kernels are the same.
set -eu

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
HERE=$ROOT/build/peers/llama-cpp-python
test -x "$HERE/bin/python" || "$ROOT/.venv/bin/python" -m venv "$HERE"
SITE=$("$HERE/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
BORROWED=$("$ROOT/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
echo "$BORROWED" >"$SITE/borrowed.pth"
"$HERE/bin/python" -m pip install -qq --disable-pip-version-check \
  sse-starlette starlette-context pydantic-settings
"$HERE/bin/python" -m llama_cpp.server --help >/dev/null
echo "$HERE/bin/python -m llama_cpp.server"
