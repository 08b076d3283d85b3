"""The page's files from the package, with headers that keep browsers from loading anything else."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_FOLDER = files(__package__).joinpath("static")
ASSET_NAMES = frozenset(entry.name for entry in _FOLDER.iterdir())
PAGE_PATHS = frozenset({"/", *(f"/dashboard/{name}" for name in ASSET_NAMES)})


def asset(name: str) -> Response:
    """A file by name; 404 for anything else."""
    if name not in ASSET_NAMES:
        return Response("no such file\n", 404, media_type="text/plain")
    kind = _TYPES[name.rsplit(".", 1)[-1]]
    return Response(_FOLDER.joinpath(name).read_bytes(), media_type=kind, headers=_HEADERS)
