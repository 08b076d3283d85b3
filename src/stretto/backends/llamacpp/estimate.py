"""The memory of a model with given settings, estimated for the configuration that will run.

Loads neither llama.cpp nor numpy. Used by the worker's memory budget and by `stretto estimate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.backends.llamacpp import attention
from stretto.backends.llamacpp.attention import Attention, Machine
from stretto.backends.llamacpp.machine import expected
from stretto.backends.llamacpp.options import ContextOptions, ModelOptions, draft_options
from stretto.model_files import fit
from stretto.model_files.kind import ModelShape
from stretto.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class Configured:
    """A model's shape with its options, on a machine."""

    shape: ModelShape
    options: ContextOptions
    machine: Machine
    snapshot_bytes: int
    draft_bytes: int = 0  # of its draft model, with everything that belongs to it
    projector_bytes: int = 0
    adapters_bytes: int = 0

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        chosen: ModelSettings,
        machine: Machine | None = None,
        *,
        projector_bytes: int = 0,
        adapters_bytes: int = 0,
    ) -> Configured:
        """`machine`: another one than this. The bytes: `projectors.bytes_for`, `adapter.bytes_for`."""
        return cls(
            shape,
            ContextOptions.from_settings(chosen),
            machine or expected(ModelOptions.from_settings(chosen)),
            chosen.cache_ram_bytes if chosen.cache != "none" and shape.generates else 0,
            projector_bytes=projector_bytes,
            adapters_bytes=adapters_bytes,
        )

    @property
    def window(self) -> int:
        return self.options.window(self.shape.context_length)

    def attention(self, window: int) -> Attention:
        """Of what may be chosen at load, the one that needs most memory."""
        found = attention.candidates(self.shape, self.options, window, self.machine)
        return max(found, key=lambda one: self._total_bytes(one, window)) if len(found) > 1 else found[0]

    def _total_bytes(self, chosen: Attention, window: int) -> int:
        return fit.estimate(
            self.shape,
            weights_bytes=0,
            context_window=window,
            n_seq_max=self.options.n_seq_max,
            **attention.fit_options(self.options, chosen),
        ).total

    def fit_options(self, window: int) -> fit.EstimateOptions:
        chosen = self.attention(window)
        options = attention.fit_options(self.options, chosen, snapshot_bytes=self.snapshot_bytes)
        options["projector_bytes"] = self.projector_bytes
        if self.projector_bytes and not chosen.side_context:
            rows = attention.media_pass_rows(self.shape, self.options, window, chosen)
            options["side_context_ubatch"] = rows
        options["draft_bytes"] = self.draft_bytes
        options["adapters_bytes"] = self.adapters_bytes
        return options

    def with_draft(self, shape: ModelShape, weights_bytes: int) -> Configured:
        """The same with a draft model of this shape and size."""
        window = min(self.window, shape.context_length)
        options = draft_options(self.options, window)
        alone = Configured(shape, options, self.machine, snapshot_bytes=0)
        return replace(self, draft_bytes=alone.estimate(weights_bytes).device)

    def estimate(self, weights_bytes: int) -> fit.Estimate:
        return fit.estimate(
            self.shape,
            weights_bytes=weights_bytes,
            context_window=self.window,
            n_seq_max=self.options.n_seq_max,
            **self.fit_options(self.window),
        )

    def fit(
        self,
        weights_bytes: int,
        free_bytes: int,
        *,
        on_gpu: bool,
        fits: Callable[[fit.Estimate], bool] | None = None,
    ) -> fit.Fit:
        return fit.fit(
            self.shape,
            free_bytes=free_bytes,
            on_gpu=on_gpu,
            fits=fits,
            weights_bytes=weights_bytes,
            context_window=self.window,
            n_seq_max=self.options.n_seq_max,
            configure=self.fit_options,
        )
