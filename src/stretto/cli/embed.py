"""`stretto embed`: texts in, vectors out, one line of JSON each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.failures import UsageError
from stretto.cli.flags import ModelFlags, values
from stretto.cli.output import line, progress
from stretto.cli.run import piped

if TYPE_CHECKING:
    from stretto.llm.embedding import Embeddings

DIGITS = 7  # precision of a 32-bit float
CHUNK = 512  # texts at a time, so that output starts before the last is computed


def embed(
    *texts: Annotated[str, Parameter(name="TEXT")],
    model: Annotated[str | None, Parameter(name=["--model", "-m"], metavar="MODEL")] = None,
    dimensions: Annotated[int | None, Parameter(metavar="N")] = None,
    truncate: Annotated[Literal["left", "right"] | None, Parameter(metavar="left|right")] = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    similarity: Annotated[bool, Parameter(negative="")] = False,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Print the embedding of each text as a line of JSON; without texts, of each line on stdin.

    Parameters
    ----------
    texts
        Texts to embed.
    model
        A .gguf file or a name from `stretto ls`. [default: all-MiniLM-L6-v2]
    dimensions
        Truncate the vectors to this length.
    truncate
        Truncate long texts at this end. [default: they are an error]
    raw
        Do not normalize the vectors.
    similarity
        Print the pairwise cosine similarities instead of the vectors.
    """
    given = list(texts) or [text for text in (piped() or "").splitlines() if text.strip()]
    if not given:
        raise UsageError("nothing to embed", hint='stretto embed "a text" "another"')
    from stretto.cli.session import opened

    path = model if model is not None else str(_default(context))
    with opened(context, path, values(flags)) as llm:
        parts = [
            llm.embed(
                given[at : at + CHUNK], dimensions=dimensions, truncate=truncate or "", normalize=not raw
            )
            for at in range(0, len(given), CHUNK)
        ]
        if similarity:
            _show_similarity(parts)
        else:
            _show(parts)


def _default(context: GlobalOptions) -> Path:
    with progress("writing the embedding model") as shown:
        return context.store().ensure_embedding(shown)


def _show(parts: list[Embeddings]) -> None:
    for part in parts:
        for vector in part:
            sys.stdout.write(json.dumps([float(f"{number:.{DIGITS}g}") for number in vector]) + "\n")


def _show_similarity(parts: list[Embeddings]) -> None:
    import numpy as np

    rows = np.concatenate([part.vectors for part in parts])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for row in rows @ rows.T:
        line("  ".join(f"{number:6.3f}" for number in row))
