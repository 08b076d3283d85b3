"""Arguments and results of `LLM.embed` and `LLM.rerank`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stretto.errors import InvalidRequestError
from stretto.rpc.messages import EmbedParams, EmbedResult, RerankParams, RerankResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Inputs = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
Truncate = Literal["", "left", "right"]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """One row of `vectors` per input, in order."""

    vectors: NDArray[np.float32]
    prompt_tokens: int

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.vectors[index]
        return row

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        return iter(self.vectors)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One ranked document: its index in the input list, and its score."""

    index: int
    score: float
    document: str


def embed_params(
    inputs: Inputs,
    *,
    dimensions: int | None,
    truncate: Truncate,
    normalize: bool,
    timeout_s: float | None,
) -> EmbedParams:
    return EmbedParams(
        inputs=_listed(inputs),
        dimensions=dimensions,
        truncate=truncate,
        normalize=normalize,
        deadline_ms=_milliseconds(timeout_s),
    )


def rerank_params(
    query: str, documents: Sequence[str], *, truncate: Truncate, raw_scores: bool, timeout_s: float | None
) -> RerankParams:
    if isinstance(documents, str):
        raise InvalidRequestError("documents must be a list of texts, not one text", hint="")
    return RerankParams(
        query=query,
        documents=list(documents),
        raw_scores=raw_scores,
        truncate=truncate,
        deadline_ms=_milliseconds(timeout_s),
    )


def embeddings_of(result: EmbedResult) -> Embeddings:
    import numpy as np

    flat: NDArray[np.float32] = np.frombuffer(result.vectors, dtype="<f4")
    return Embeddings(flat.reshape(-1, result.width), result.prompt_tokens)


def ranking_of(result: RerankResult, documents: Sequence[str], top_n: int | None) -> list[Ranked]:
    """Best first; equal scores keep the input order."""
    if top_n is not None and top_n < 1:
        raise InvalidRequestError(f"top_n must be 1 or more, not {top_n}", hint="")
    order = sorted(range(len(documents)), key=lambda index: -result.scores[index])
    return [Ranked(index, result.scores[index], documents[index]) for index in order[:top_n]]


def _listed(inputs: Inputs) -> list[Any]:
    """Wrap a single text or a single list of token ids in a list."""
    if isinstance(inputs, str):
        return [inputs]
    items: list[Any] = list(inputs)
    return [items] if items and all(isinstance(item, int) for item in items) else items


def _milliseconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else 1000 * timeout_s
