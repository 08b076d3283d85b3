"""Asks for a model that is served, where any name at all would do: else every good request ended with 404."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("model"), str) and len(body["model"]) <= 512:
        body["model"] = "tiny"
    return body
