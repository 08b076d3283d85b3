"""schemathesis over the whole OpenAPI document: good, bad and borderline requests in every phase.

Whole: python -m tests.server.fuzz --examples 1000 [--backend simulated]. Without a backend the client is
scripted, and what is tried is the server alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from stretto.server.app import create_app
from stretto.settings import ServerSettings
from stretto.telemetry import logs
from tests.server.process import served
from tests.server.running import serving
from tests.server.scripted import ScriptedClient

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance"
)
ROOT = Path(__file__).parents[2]


PHASES = "examples,coverage,fuzzing"
# A list one item longer than allowed may also be more bytes than allowed: that is a refusal, too.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = ["400", "404", "405", "413", "415"]
"""
LINE_CHARS_MAX = 400  # a body that failed can be megabytes


def fuzz(
    examples: int, *, seed: int = 1, phases: str = PHASES, paths: str = "", backend: str = ""
) -> tuple[int, str]:
    """The exit status of schemathesis, and what it said. `paths` is a pattern; nothing means all.

    `backend` names one for a whole `stretto serve`; without it the worker client is scripted.
    """
    with _served(backend) as url, tempfile.TemporaryDirectory() as place:
        httpx2.get(f"{url}/openapi.json", timeout=120).raise_for_status()  # made now, not in its 10 s
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
        command += ["--checks", CHECKS, "--phases", phases, "--mode", "all", "--seed", str(seed)]
        command += ["--max-examples", str(examples), "--warnings", "off", "--no-color"]
        command += ["--generation-allow-x00", "true", "--request-timeout", "120"]
        command += ["--generation-database", "none", "--suppress-health-check", "all"]
        command += ["--include-path-regex", paths] if paths else []
        (Path(place) / "schemathesis.toml").write_text(CONFIG)
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks"}
        environment["PYTHONPATH"] = str(ROOT)
        environment["STRETTO_FUZZ_MODEL"] = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
    said = (done.stdout + done.stderr).splitlines()
    return done.returncode, "\n".join(line[:LINE_CHARS_MAX] for line in said)


@contextmanager
def _served(backend: str) -> Iterator[str]:
    if backend:
        with served("--backend", backend, "--log-level", "error", "--context-window", "512") as url:
            yield url
        return
    app = create_app(ScriptedClient(vectors=True), ServerSettings(log_level="error"))
    with serving(app) as url:
        yield url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default=PHASES)
    parser.add_argument("--backend", default="", help="of a whole server; nothing: a scripted engine")
    parser.add_argument("--paths", default="", help="a pattern; nothing means all")
    arguments = parser.parse_args()
    logs.set_up(json_lines=True, level="error")
    status, said = fuzz(
        arguments.examples,
        seed=arguments.seed,
        phases=arguments.phases,
        paths=arguments.paths,
        backend=arguments.backend,
    )
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
