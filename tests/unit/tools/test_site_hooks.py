"""Links of the documentation that leave docs/: to the repository where it has an address, otherwise text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools import site_hooks

PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="guides/sdk.md"))


@pytest.mark.parametrize(
    ("repo_url", "link", "expected"),
    [
        (None, "[the list](../../Makefile)", "the list (`Makefile`)"),
        (None, "[`examples`](../../examples)", "`examples`"),
        (None, "[architecture](../architecture.md#layers)", "[architecture](../architecture.md#layers)"),
        (None, "[site](https://example.org/x)", "[site](https://example.org/x)"),
        ("https://host/r/", "[the list](../../Makefile)", "[the list](https://host/r/blob/main/Makefile)"),
        ("https://host/r", "[`examples`](../../examples)", "[`examples`](https://host/r/tree/main/examples)"),
    ],
)
def test_links_that_leave_the_documentation(repo_url, link, expected):
    rewritten = site_hooks.on_page_markdown(f"See {link}.", page=PAGE, config={"repo_url": repo_url})
    assert rewritten == f"See {expected}."


def test_a_link_to_nothing_is_a_warning(caplog):
    site_hooks.on_page_markdown("[gone](../../nowhere.md)", page=PAGE, config={"repo_url": None})
    assert "nowhere.md, which is not in the repository" in caplog.text
