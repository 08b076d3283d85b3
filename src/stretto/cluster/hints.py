"""What a gate tells the router about a request: the names of its prefixes, and how long it is.

A request that carries tokens is named by them, up to its first picture, as replicas name what they have
cached. One whose text is rendered by the worker is named by its text, `CHARS_A_BLOCK` characters to a block:
routers then remember what they sent where, but cannot compare it with what replicas report.
"""

from __future__ import annotations

from array import array

import msgspec

from stretto.cluster.policy.blocks import BLOCK_TOKENS, block_hashes
from stretto.cluster.policy.routing import RouteHint
from stretto.core.request import AdapterUse, Scope
from stretto.rpc.messages import GenerateParams

CHARS_A_TOKEN = 4
CHARS_A_BLOCK = CHARS_A_TOKEN * BLOCK_TOKENS
OUTPUT_GUESS, OUTPUT_MAX = 64, 1024


def hint_of(params: GenerateParams, *, secret: bytes) -> RouteHint:
    output = min(params.max_tokens or OUTPUT_GUESS, OUTPUT_MAX)
    adapters = tuple(AdapterUse(n, 1.0 if scale is None else scale) for n, scale in sorted(params.lora))
    scope = Scope(f"tenant:{params.tenant}", params.cache_salt, adapters)
    if params.tokens is not None:
        tokens = array("i", params.tokens)
        first_media = min((item.at for item in params.media), default=len(tokens))
        return RouteHint(
            block_hashes(tokens[:first_media], scope, secret=secret),
            len(tokens) + len(params.resumed),
            output,
            params.tenant,
        )
    text = _text(params)
    points = array("I", text.encode("utf-32-le", "surrogatepass"))
    blocks = block_hashes(points, scope, secret=secret, block_tokens=CHARS_A_BLOCK)
    return RouteHint(blocks, len(text) // CHARS_A_TOKEN + 1 + len(params.resumed), output, params.tenant)


def _text(params: GenerateParams) -> str:
    """Everything that the prompt is made of, in its order: tools come first in templates."""
    if params.messages is None:
        pieces = params.pieces or ([params.prompt] if params.prompt is not None else [])
        return "\x1f".join(map(str, pieces))
    parts = [] if params.tool_use is None else [_json(params.tool_use.tools)]
    parts += [f"{message.get('role')}\x1f{_content(message)}" for message in params.messages]
    return "\x1e".join(parts)


def _content(message: dict[str, object]) -> str:
    content = message.get("content")
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    text = content if isinstance(content, str) else _json(content)
    return f"{text}{_json(rest) if rest else ''}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
