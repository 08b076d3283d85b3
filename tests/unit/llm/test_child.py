"""The SDK's worker process: it dies, is replaced, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stretto import LLM
from stretto.errors import InvalidRequestError, RuntimeLostError, UnsupportedByModelError

SETTINGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 2048, "simulated_tick_ms": 5}
LONG = {"max_tokens": 1900, "ignore_eos": True}


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(llm: LLM) -> int:
    deadline = time.monotonic() + 20
    while (pid := llm.worker_pid) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pid is not None
    return pid


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_killed_worker_fails_what_had_output_and_is_replaced():
    with LLM(**SETTINGS, own_process=True) as llm:
        pid = alive(llm)
        stream = llm.stream("x", **LONG)
        next(stream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RuntimeLostError, match="the worker died while processing this request"):
            stream.read()
        (answer,) = llm.generate("another", max_tokens=6, ignore_eos=True)
        assert len(answer.tokens) == 6
        assert alive(llm) != pid


def test_a_batch_ends_with_the_error_of_a_dead_worker_and_the_next_one_works():
    with LLM(**SETTINGS, own_process=True) as llm:
        pid, prompts = alive(llm), [f"prompt {n}" for n in range(4)]

        def kill() -> None:
            while llm.stats().tokens < 40:
                time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(RuntimeLostError):
            llm.generate(prompts, **LONG)
        killer.join()
        assert len(llm.generate(prompts, max_tokens=4, ignore_eos=True)) == 4


def test_no_process_and_no_file_is_left_after_close(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    llm = LLM(**SETTINGS, own_process=True)
    pid = alive(llm)
    llm.generate("x", max_tokens=2)
    llm.close()
    assert gone(pid)
    assert list(tmp_path.iterdir()) == []
    assert llm.worker_pid is None


def test_the_process_ends_with_the_last_reference():
    llm = LLM(**SETTINGS, own_process=True)
    pid = alive(llm)
    stream = llm.stream("x", max_tokens=100, ignore_eos=True)
    del llm
    gc.collect()
    assert len(stream.read().tokens) == 100, "a stream keeps its model"
    del stream
    gc.collect()
    assert gone(pid)


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_the_process_ends_with_the_program(end):
    script = (
        "from stretto import LLM\n"
        "llm = LLM(backend='simulated', own_process=True)\n"
        "(found,) = llm.generate('x', max_tokens=3, detokenize=False)\n"
        "print(llm.worker_pid, found.finish_reason, flush=True)\n"
        f"{end}\n"
    )
    done = run(script)
    pid, reason = done.stdout.split()
    assert reason in ("stop", "length")
    assert done.stderr == ""
    assert gone(int(pid))


def test_a_forked_copy_closes_nothing():
    script = (
        "import os\nfrom stretto import LLM\n"
        "llm = LLM(backend='simulated', own_process=True)\n"
        "if (child := os.fork()) == 0:\n    llm.close()\n    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(llm.generate('x', max_tokens=3, ignore_eos=True)[0].usage.completion_tokens)\n"
    )
    done = run(script)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_ticks_are_reported_only_by_a_model_in_this_process():
    with LLM(**SETTINGS, own_process=True) as llm:
        with pytest.raises(InvalidRequestError, match="on_tick") as caught:
            llm.on_tick(print)
        assert "own_process=False" in caught.value.hint


def test_a_blind_model_says_what_would_help():
    picture = {"type": "image", "image": b"PNG"}
    with LLM(**SETTINGS, own_process=True) as llm:
        with pytest.raises(UnsupportedByModelError, match="takes no pictures") as caught:
            llm.chat([{"role": "user", "content": [picture]}])
        assert "mmproj" in caught.value.hint


def test_the_setting_decides_where_the_keyword_does_not(monkeypatch):
    monkeypatch.setenv("STRETTO_RUNTIME__OWN_PROCESS", "true")
    with LLM(**SETTINGS) as llm:
        assert alive(llm) != os.getpid()
    with LLM(**SETTINGS, own_process=False) as llm:
        assert llm.worker_pid is None
