"""Prints the OpenAPI document: `python -m stretto.server.print_openapi [ignore|refuse]`.

Run as a child by the server at the first request for /openapi.json, at a low priority. It needs no model and
no worker: the document depends on the routes and on `unknown_fields` alone.
"""

from __future__ import annotations

import os
import sys
from typing import cast

import msgspec

from stretto.client.api import WorkerClient
from stretto.server.app import create_app
from stretto.settings import ServerSettings


def main(arguments: list[str]) -> None:
    os.nice(10)
    options = ServerSettings.model_validate({"unknown_fields": arguments[0]} if arguments else {})
    without_worker = cast("WorkerClient", None)  # routes are described here, never called
    document = create_app(without_worker, options).api.openapi()
    sys.stdout.buffer.write(msgspec.json.encode(document))


if __name__ == "__main__":
    main(sys.argv[1:])
