"""How large a call becomes on the wire: a runtime closes the connection on a frame that is too large.

One closed connection costs every stream, so what does not fit is refused here, before it is sent. Measuring
means encoding twice; a bound that costs nothing decides first whether there is anything to measure.
"""

from __future__ import annotations

import msgspec

from stretto.errors import TooLargeError
from stretto.rpc import messages as m

ENVELOPE_BYTES = 4096
LETTER_BYTES = 6  # of one letter in JSON at the most: \\u0000
TOKEN_BYTES = 12


def check_size(params: m.Message, frame_bytes_max: int) -> None:
    """Raises TooLargeError. What cannot be encoded at all raises as it would when it is sent."""
    if _bound(params) <= frame_bytes_max:
        return
    size = len(msgspec.json.encode(params)) + ENVELOPE_BYTES
    if size > frame_bytes_max:
        raise TooLargeError(
            f"the request takes {size} bytes; at most {frame_bytes_max} go to the runtime at once",
            hint="send less, or raise runtime.frame_bytes_max",
        )


def _bound(params: m.Message) -> int:
    if isinstance(params, m.BatchGenerateParams):
        return sum(_of_generation(request) for request in params.requests)
    if isinstance(params, m.GenerateParams):
        return _of_generation(params)
    if isinstance(params, m.CancelParams | m.Empty):
        return 0
    return len(msgspec.json.encode(params)) + ENVELOPE_BYTES


def _of_generation(params: m.GenerateParams) -> int:
    shaped = params.messages or params.tool_use or params.guidance or params.stops or params.template_options
    if shaped:
        return len(msgspec.json.encode(params)) + ENVELOPE_BYTES
    letters, tokens = len(params.prompt or ""), len(params.tokens or ())
    return LETTER_BYTES * letters + TOKEN_BYTES * tokens + ENVELOPE_BYTES
