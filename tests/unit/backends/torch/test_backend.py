"""Failed passes, and errors that the backend detects before the device would."""

from __future__ import annotations

from array import array

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import End, PassFailure, Tick
from stretto.errors import InvariantError
from tests.contract.workbench import Driver, Subject, alone
from tests.contract.workbench import ask as ask_text
from tests.unit.backends.torch.rig import Loop, Recorder, ask, folder, load, make_backend


class Breaking(Recorder):
    """Fails a given pass half-way."""

    fails: dict[int, Exception]
    passes = 0

    def logits(self, *args, **more):
        self.passes += 1
        made = super().logits(*args, **more)
        if self.passes - 1 in self.fails:
            self.rows.clear()
            raise self.fails[self.passes - 1]
        return made


def breaking(**fails):
    model = load(folder("qwen3"))
    model.__class__ = Breaking
    model.fails = {int(name.removeprefix("at")): error for name, error in fails.items()}
    return model


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RuntimeError("the kernel broke"), PassFailure.FAILED),
        (torch.OutOfMemoryError("too much"), PassFailure.NO_ROOM),
    ],
)
def test_a_failed_pass_is_reported_and_the_tick_planned_after_it_is_void(error, failure):
    subject = Subject("breaking", lambda _: make_backend(breaking(at1=error)))
    driver = Driver(subject)
    text = driver.bind(ask_text("a", 12), 0)
    driver.tick((text, 6))
    driver.launch((text, 5))
    newcomer = driver.bind(ask_text("b", 5, start=7), 1)
    driver.launch((newcomer, 2))
    assert driver.backend.collect().failure is failure
    void = driver.backend.collect()
    assert (void.failure, void.ran, void.op_results) == (PassFailure.VOID, False, ())
    assert driver.backend.last_error is error
    driver.launched.clear()
    assert driver.backend.recover({0: 6}) == frozenset()
    sound = Subject("sound", lambda _: make_backend("qwen3"))
    assert driver.say(newcomer, 4) == alone(sound, newcomer.request, 4)
    assert driver.say(text, 4) == alone(sound, text.request, 4)


@pytest.mark.parametrize("at", [0, 2, 5, 9])
def test_requests_survive_one_failed_pass(at):
    requests = [ask(f"r{i}", 9 + 7 * i, start=i, outputs=8) for i in range(5)]
    loop = Loop(make_backend(breaking(**{f"at{at}": RuntimeError("broken")})), prefill_chunk=16)
    texts = loop.run(requests)
    assert all(end.end is End.FINISHED for end in loop.ends.values())
    assert texts == Loop(make_backend("qwen3"), prefill_chunk=16).run(requests)


def test_sequence_operations_are_refused():
    backend = make_backend("qwen3")
    backend.launch(Tick(0, ops=(KvOp(OpKind.CLEAR, 0),)))
    outcome = backend.collect()
    assert [result.ok for result in outcome.op_results] == [False]
    assert (outcome.ran, list(outcome.counts)) == (False, [])


def test_rows_without_a_page_or_a_request_raise_invariant_errors():
    backend = make_backend("qwen3")
    lost = Tick(0, slots=array("i", [0]), sequences=array("i", [0]), starts=array("i", [0]))
    lost.counts, lost.outputs, lost.tokens = array("i", [1]), array("i", [1]), array("i", [5])
    with pytest.raises(InvariantError, match="beyond the pages"):
        backend.launch(lost)


def test_the_backend_imports_no_optional_packages():
    """Some machines have only torch, numpy, safetensors, tokenizers and gguf."""
    import subprocess
    import sys

    script = (
        "import sys, stretto.backends.torch.loading\n"
        "banned = {'llama_cpp', 'msgspec', 'pydantic', 'minijinja', 'cyclopts', 'llguidance', 'fastapi',"
        " 'transformers', 'triton', 'yaml', 'structlog'}\n"
        "print(sorted(banned & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
