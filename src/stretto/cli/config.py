"""`stretto config show`: every setting, its value and its source."""

from __future__ import annotations

import json as json_
from typing import Annotated, Any

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.flags import ModelFlags, values
from stretto.cli.output import note, print_json, print_table, say


def show(
    *,
    origin: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Print every setting. Precedence: flags, STRETTO_* variables, settings file, defaults.

    Parameters
    ----------
    origin
        Also print the source of each value.
    json
        As JSON.
    """
    loaded = context.settings(values(flags))
    for text in loaded.notes:
        note(text)
    rows = loaded.rows()
    if json:
        print_json(
            {key: {"value": value, "origin": source} if origin else value for key, value, source in rows}
        )
        return
    say(f"settings file: {loaded.path if loaded.path is not None else 'none'}")
    columns = ["KEY", "VALUE", "ORIGIN"] if origin else ["KEY", "VALUE"]
    print_table(columns, [[key, _text(value), source][: len(columns)] for key, value, source in rows])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_.dumps(value, ensure_ascii=False)
