"""The grammar of a request's options: a JSON schema, any JSON object, a regular expression or a grammar.

Only converts: the result is compiled where it is sampled with (`worker.grammars`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import InvalidRequestError
from stretto.rpc.messages import Guidance
from stretto.text import grammar as grammars
from stretto.text import grammar_size

_MAKERS = {
    "json_schema": grammars.from_json_schema,
    "json_object": lambda _: grammars.from_json_object(),
    "regex": grammars.from_regex,
    "grammar": grammars.from_grammar,
}


def grammar_of(options: Mapping[str, Any]) -> str:
    """The grammar that the options name; "" without one."""
    asked = [name for name in _MAKERS if options.get(name)]
    if len(asked) > 1:
        raise InvalidRequestError(f"{' and '.join(asked)} are mutually exclusive", hint="send one of them")
    if not asked:
        return ""
    grammar_size.check(asked[0], options[asked[0]])
    return _MAKERS[asked[0]](options[asked[0]])


def guidance_options(guidance: Guidance | None, forced: Mapping[str, Any] | None) -> dict[str, Any]:
    """Guidance as options. `forced`: the schema of a forced tool call, which excludes guidance."""
    if guidance is None:
        return {} if forced is None else {"json_schema": forced}
    if forced is not None:
        raise InvalidRequestError("a forced tool call excludes guidance", hint="send one of the two")
    value = True if guidance.mode == "json_object" else guidance.value
    if not value:
        raise InvalidRequestError(f"guidance {guidance.mode} has no value", hint="send a schema or a pattern")
    return {guidance.mode: value}
