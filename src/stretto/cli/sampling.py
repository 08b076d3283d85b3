"""Sampling options of `run` and `chat`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from stretto.errors import InvalidRequestError

ANSWER = Group("Answer", sort_key=40)
SCHEMA_BYTES_MAX = 1 << 20


@Parameter(name="*", group=ANSWER)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling options.

    Parameters
    ----------
    max_tokens
        Maximum tokens of the answer. [default: 1024]
    temperature
        0 is greedy. [default: 0.8]
    top_p
        Keep the most likely tokens up to this cumulative probability. [default: 0.95]
    top_k
        Keep this many tokens; 0 keeps all. [default: 40]
    min_p
        Drop tokens less likely than this fraction of the most likely one. [default: 0.05]
    repeat_penalty
        Above 1 penalizes recent tokens.
    stop
        Stop before this text; repeatable.
    ignore_eos
        Continue past the end-of-sequence token.
    json_schema
        A file with a JSON schema that the answer must follow.
    timeout
        Time-out in seconds.
    """

    max_tokens: Annotated[int | None, Parameter(name=["--max-tokens", "-n"], metavar="N", group=ANSWER)] = (
        None
    )
    temperature: Annotated[
        float | None, Parameter(name=["--temperature", "-t"], metavar="X", group=ANSWER)
    ] = None
    top_p: Annotated[float | None, Parameter(metavar="X", group=ANSWER)] = None
    top_k: Annotated[int | None, Parameter(metavar="N", group=ANSWER)] = None
    min_p: Annotated[float | None, Parameter(metavar="X", group=ANSWER)] = None
    repeat_penalty: Annotated[float | None, Parameter(metavar="X", group=ANSWER)] = None
    stop: Annotated[list[str] | None, Parameter(negative="", metavar="TEXT", group=ANSWER)] = None
    json_schema: Annotated[Path | None, Parameter(metavar="FILE", group=ANSWER)] = None
    ignore_eos: Annotated[bool | None, Parameter(negative="", group=ANSWER)] = None
    timeout: Annotated[float | None, Parameter(metavar="SECONDS", group=ANSWER)] = None

    def options(self) -> dict[str, Any]:
        """As SDK keywords; a schema is checked here, before a model is loaded."""
        names = (
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repeat_penalty",
            "stop",
            "ignore_eos",
        )
        found = {name: getattr(self, name) for name in names}
        found["timeout_s"] = self.timeout
        found["json_schema"] = _schema(self.json_schema) if self.json_schema is not None else None
        return {name: value for name, value in found.items() if value is not None}


def _schema(path: Path) -> Any:
    from stretto.text import grammar

    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"the JSON schema {path} cannot be read: {error.strerror}", hint="name a file with --json-schema"
        ) from None
    if len(raw) > SCHEMA_BYTES_MAX:
        raise InvalidRequestError(f"the JSON schema {path} has {len(raw):,} bytes", hint="is it this file?")
    try:
        schema = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidRequestError(
            f"the JSON schema {path} is not JSON: {reason}", hint="check its commas and quotes"
        ) from None
    grammar.check_grammar(grammar.from_json_schema(schema))
    return schema
