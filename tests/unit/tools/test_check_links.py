"""Links between Markdown files: broken ones are found, and this repository has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_links, reference

PAGE = """# One page

[good](docs/other.md) [anchor](docs/other.md#why-it-holds) [own](#one-page) [folder](docs/) [site](https://stretto.example/x)
![image](image.png) [generated](docs/reference/settings.md)

```md
[in code](nowhere.md)
```
and `[in code](nowhere.md)`
"""
OTHER = """# Other

## Why *it* `holds`!
## Twice
## Twice

[back](../README.md#one-page) [second](#twice-1)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "image.png").touch()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "other.md").write_text(OTHER)
    return tmp_path


def test_good_links_pass(root: Path) -> None:
    assert check_links.broken(root) == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("docs/gone.md", "does not exist"),
        ("docs/other.md#gone", "names no heading"),
        ("#gone", "names no heading"),
        ("../outside.md", "leaves the repository"),
        ("docs/reference/gone.md", "does not exist"),
    ],
)
def test_a_broken_link_is_named_with_its_line(root: Path, link: str, problem: str) -> None:
    page = root / "README.md"
    page.write_text(f"{PAGE}\n\n[broken]({link})\n")
    assert check_links.broken(root) == [f"README.md:12: {link} {problem}"]
    assert check_links.main(root) == 1


def test_environments_and_builds_are_left_out(root: Path) -> None:
    for name in (".venv", "site"):
        (root / name).mkdir()
        (root / name / "page.md").write_text("[broken](gone.md)")
    assert check_links.broken(root) == []


def test_this_repository_has_no_broken_link() -> None:
    assert check_links.broken(check_links.ROOT) == []


def test_the_pages_that_may_be_missing_are_the_generated_ones(tmp_path: Path) -> None:
    written = reference.write(tmp_path / "reference")
    assert {path.name for path in written} == {Path(name).name for name in check_links.GENERATED}
