"""Bodies of type multipart/form-data (RFC 7578): a few named fields and files, bounded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.errors import InvalidRequestError, MediaTypeError

PARTS_MAX = 64
HEAD_BYTES_MAX = 4096
_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="([^"\r\n]{1,256})"')


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    value: bytes

    @property
    def text(self) -> str:
        return self.value.decode("utf-8", "replace")


def form_fields(content_type: str, body: bytes) -> list[FormField]:
    """The fields of a form, in order."""
    kind, _, options = content_type.partition(";")
    boundary = _BOUNDARY.search(options)
    if kind.strip().lower() != "multipart/form-data" or boundary is None:
        raise MediaTypeError(
            f"the body's content type is {kind[:80] or 'missing'}, not a form",
            hint="send multipart/form-data",
        )
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(mark, PARTS_MAX + 1)
    if len(parts) < 2 or len(parts) > PARTS_MAX + 1 or not parts[-1].startswith(b"--"):
        raise InvalidRequestError("the form is truncated or has too many fields", hint="send it again")
    return [_field(part) for part in parts[1:-1]]


def _field(part: bytes) -> FormField:
    head, blank, value = part.partition(b"\r\n\r\n")
    name = _NAME.search(head[:HEAD_BYTES_MAX])
    if not blank or len(head) > HEAD_BYTES_MAX or name is None:
        raise InvalidRequestError("a field of the form has no name", hint="send it again")
    return FormField(name[1].decode("utf-8", "replace"), value)
