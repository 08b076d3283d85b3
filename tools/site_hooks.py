"""Hooks of the documentation site: links to files outside docs/, and to folders, point to the repository.

Without a `repo_url` in mkdocs.yml there is no such place: the path is then named in the text.

Runs in the environment of mkdocs, without Stretto. A warning ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.site")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page, before links are resolved."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        place = ROOT / target
        if target.startswith("docs/") and not place.is_dir():
            return link[0]  # the build itself checks it
        if target.startswith("..") or not place.exists():
            log.warning("%s links to %s, which is not in the repository", page.file.src_uri, link[2])
        if not config["repo_url"]:
            return link[1] if target in link[1] else f"{link[1]} (`{target}`)"
        kind = "tree" if place.is_dir() else "blob"
        return f"[{link[1]}]({config['repo_url'].rstrip('/')}/{kind}/main/{target}{link[3] or ''})"

    return _LINK.sub(rewritten, markdown)
