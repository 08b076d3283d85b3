"""`stretto version` with options; without options it is handled before any import."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from stretto import __version__
from stretto.cli.output import print_json


def version(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Print the version.

    Parameters
    ----------
    json
        As JSON, with Python's version.
    """
    if json:
        print_json({"stretto": __version__, "python": sys.version.split()[0]})
    else:
        sys.stdout.write(f"stretto {__version__}\n")
