"""An environment outside the checkout that sees the packages of the tests' environment, but for some.

Nothing is downloaded or compiled: packages are links. Stretto itself is never linked.
"""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

OURS = ("stretto", "__editable__", "_editable")


def make(folder: Path) -> Path:
    """An empty environment; the path of its `bin`."""
    venv.create(folder, with_pip=False)
    return folder / "bin"


def link_packages(environment: Path, *, without: tuple[str, ...] = ()) -> None:
    """Make packages visible in an environment, but for those whose file names start with `without`."""
    others = environment / "-".join(["packages-without", *(without or ["none"])])
    others.mkdir(exist_ok=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        link = others / entry.name
        if not entry.name.startswith((*OURS, *without)) and not link.exists():
            link.symlink_to(entry)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")
