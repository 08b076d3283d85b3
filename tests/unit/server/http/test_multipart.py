"""Forms: fields and files by name, whatever is in them."""

from __future__ import annotations

import pytest

from stretto.errors import InvalidRequestError, MediaTypeError
from stretto.server.http.multipart import FormField, form_fields

TYPE = 'multipart/form-data; boundary="xx"'


def form(*fields: tuple[str, bytes]) -> bytes:
    parts = [
        b'--xx\r\nContent-Disposition: form-data; name="%b"; filename="a"\r\n\r\n%b\r\n'
        % (name.encode(), value)
        for name, value in fields
    ]
    return b"".join(parts) + b"--xx--\r\n"


def test_fields_and_files():
    body = form(("file", b"\r\n--x\0\xff"), ("model", "é".encode()))
    assert form_fields(TYPE, body) == [FormField("file", b"\r\n--x\0\xff"), FormField("model", "é".encode())]
    assert form_fields(TYPE.replace('"', ""), body)[1].text == "é"
    assert form_fields(TYPE, form()) == []


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        ("application/json", form(), MediaTypeError),
        ("multipart/form-data", form(), MediaTypeError),
        (TYPE, b"", InvalidRequestError),
        (TYPE, form(("a", b"b"))[:-6], InvalidRequestError),
        (TYPE, form(*[("a", b"b")] * 65), InvalidRequestError),
        (TYPE, b"--xx\r\nno name\r\n\r\n1\r\n--xx--", InvalidRequestError),
        (TYPE, b'--xx\r\nx: name="a"' + b" " * 5000 + b"\r\n\r\n1\r\n--xx--", InvalidRequestError),
    ],
)
def test_what_is_refused(kind, body, error):
    with pytest.raises(error):
        form_fields(kind, body)
