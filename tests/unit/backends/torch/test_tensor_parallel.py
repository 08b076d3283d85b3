"""Tensor parallelism with two and four gloo processes: the same tokens as one, and what happens at an end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch import read_config
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.parallel.checks import check_supported, rank_devices
from stretto.backends.torch.parallel.followers import Followers
from stretto.backends.torch.parallel.group import RankGroup
from stretto.backends.torch.parallel.messages import Setup
from stretto.backends.torch.parallel.shard import ShardedSource, shard_shape
from stretto.backends.torch.weights import SafetensorsSource
from stretto.errors import ModelFileError, SettingsError, TorchError, UnsupportedModelError
from tests.unit.backends.torch.rig import Loop, ask, folder, hf_config, make_hf_model, save
from tests.unit.backends.torch.test_draft_model import Asking

DENSE = ("llama", "qwen2", "qwen3")
DEADLINE_S = 60.0


class Plain(Loop):
    """A loop over a backend whose model does not record its logits."""

    def _launch(self, tick) -> None:
        self.backend.launch(tick)
        self._flying.append(tick)


@contextlib.contextmanager
def opened(path: Path, **more):
    defaults = {"slots": 4, "window": 256, "pages": 96, "page_tokens": 16, "rows_max": 256, "device": "cpu"}
    backend = open_model(
        path, TorchOptions(**defaults | {"load_format": "auto", "threads": 1} | more)
    ).backend
    try:
        yield backend
    finally:
        backend.close()


def wait_until(condition, what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def requests() -> list:
    """More than there are slots, of lengths that mix prompt and decode rows, with prefixes in common."""
    lengths = (20, 90, 33, 90, 7, 64)
    return [ask(f"r{n}", count, start=n % 2, outputs=12 + n) for n, count in enumerate(lengths)]


LIMITS = {
    "whole": {},
    "chunks": {"prefill_chunk": 16},
    "no cache": {"cache": "none"},
}


@pytest.mark.parametrize("kind", DENSE)
def test_two_ranks_give_the_tokens_of_one(kind):
    with opened(folder(kind)) as alone:
        expected = {name: Plain(alone, **limits).run(requests()) for name, limits in LIMITS.items()}
    with opened(folder(kind), tensor_parallel=2) as backend:
        for name, limits in LIMITS.items():
            loop = Plain(backend, **limits)
            assert loop.run(requests()) == expected[name], name
            found = sum(end.cached_tokens for end in loop.ends.values())
            assert bool(found) == (name != "no cache"), (
                "the prefix cache shares pages, and copies parts of them"
            )


def test_a_draft_model_runs_on_rank_0():
    """Its passes lie between those of the ranks, and the texts are those of one process without it."""
    with opened(folder("llama")) as alone:
        expected = Plain(alone).run(requests())
    more = {"draft_model": folder("llama"), "lookup": False, "drafts_max": 4}
    with opened(folder("llama"), tensor_parallel=2, **more) as backend:
        loop = Plain(backend)
        state = loop.scheduler.state
        state.drafts = Asking(state.cost, model_passes=backend.capabilities.draft_passes)
        asked = [replace(one, params=replace(one.params, draft_tokens=4)) for one in requests()]
        assert loop.run(asked) == expected
        ends = loop.ends.values()
        assert sum(end.accepted_drafts for end in ends) == sum(end.proposed_drafts for end in ends) > 20


def test_sampling_logprobs_and_prompt_scores_are_those_of_one_process():
    def asked():
        return [
            ask("drawn", 40, temperature=0.8, seed=3, top_p=0.9, repeat_penalty=1.2),
            ask("host", 30, start=1, typical_p=0.9, temperature=0.7, seed=5),
            ask("scored", 30, start=2, logprobs=3, prompt_logprobs=2),
        ]

    with opened(folder("llama")) as alone:
        expected = Plain(alone).run(asked())
    with opened(folder("llama"), tensor_parallel=2) as backend:
        loop = Plain(backend)
        assert loop.run(asked()) == expected
        assert loop.extras["scored"]


def test_fewer_kv_heads_than_ranks_and_biases_everywhere():
    """Four ranks, two KV heads: each head is on two ranks. Output biases are added once."""
    model = make_hf_model(hf_config("llama", attention_bias=True, mlp_bias=True))
    path = save(model, max_shard_size="60KB")
    with opened(path) as alone:
        expected = Plain(alone).run(requests()[:3])
    with opened(path, tensor_parallel=4, rank_devices=("cpu",)) as backend:
        assert Plain(backend).run(requests()[:3]) == expected


def test_random_weights_are_the_same_in_parts():
    more = {"load_format": "dummy"}
    with opened(folder("qwen3"), **more) as alone:
        expected = Plain(alone).run(requests()[:2])
    with opened(folder("qwen3"), tensor_parallel=2, **more) as backend:
        assert Plain(backend).run(requests()[:2]) == expected


def test_a_rank_reads_only_its_part():
    path = folder("llama")
    shape = read_config(path)
    whole = SafetensorsSource(path)
    names = {"q_proj": 64, "k_proj": 32, "gate_proj": 96}
    for rank in range(2):
        part = ShardedSource(SafetensorsSource(path), shape, rank=rank, ranks=2)
        for module, rows in names.items():
            name = f"model.layers.0.{'mlp' if 'gate' in module else 'self_attn'}.{module}.weight"
            half = slice(rank * rows // 2, (rank + 1) * rows // 2)
            assert torch.equal(part.read(name, (rows // 2, 64)), whole.read(name, (rows, 64))[half])
        name = "model.layers.0.mlp.down_proj.weight"
        assert torch.equal(
            part.read(name, (64, 48)), whole.read(name, (64, 96))[:, rank * 48 : rank * 48 + 48]
        )


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "named"), [(3, "4 attention heads"), (8, "4 attention heads"), (64, "4 attention heads")]
)
def test_ranks_that_do_not_divide_the_model(ranks, named):
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        shard_shape(read_config(folder("llama")), ranks)
    assert "1, 2 or 4" in caught.value.hint


def test_what_cannot_be_combined_is_refused_before_anything_starts(tmp_path):
    two = {"tensor_parallel": 2, "device": "cpu"}
    gguf = tmp_path / "model.gguf"
    for source, more, error, named in (
        (folder("moe"), {}, UnsupportedModelError, "mixture-of-experts"),
        (folder("llama"), {"quantization": "fp8"}, UnsupportedModelError, "FP8"),
        (folder("llama"), {"kv_dtype": "fp8"}, SettingsError, "kv_dtype"),
        (folder("llama"), {"adapters": {"a": object()}}, SettingsError, "adapters"),
        (read_config(folder("llama")), {}, UnsupportedModelError, "safetensors"),
    ):
        with pytest.raises(error, match=named) as caught:
            open_model(source, TorchOptions(**two, **more))
        assert caught.value.hint
    with pytest.raises(UnsupportedModelError, match="GGUF"):
        check_supported(gguf, read_config(folder("llama")), fp8=False, kv_dtype="auto", adapters=False)


def test_each_rank_needs_a_gpu_of_its_own():
    assert rank_devices(["cpu"], 2) == [torch.device("cpu")] * 2
    with pytest.raises(SettingsError, match="2 devices for tensor_parallel: 3"):
        rank_devices(["cuda:0", "cuda:1"], 3)
    count = torch.cuda.device_count()
    with pytest.raises(SettingsError, match=f"this machine has {count}") as caught:
        rank_devices([f"cuda:{index}" for index in range(count + 2)], count + 2)
    assert "n_gpu_layers: 0" in caught.value.hint


# --- ends ----------------------------------------------------------------------------------------


def test_closing_ends_the_followers():
    with opened(folder("llama"), tensor_parallel=2) as backend:
        (pid,) = backend.followers.pids
        assert is_running(pid)
    wait_until(lambda: not is_running(pid), "the follower outlives its model")


def test_a_follower_that_dies_ends_the_model_with_one_error():
    reasons: list[str] = []
    with opened(folder("llama"), tensor_parallel=2, on_lost=reasons.append) as backend:
        loop = Plain(backend)
        loop.run([ask("before", 20)])
        os.kill(backend.followers.pids[0], signal.SIGKILL)
        with pytest.raises(TorchError):
            loop.run([ask("after", 20, outputs=200)])
        wait_until(lambda: bool(reasons), "its end is not noticed")
    assert reasons == ["rank 1 of 2 was killed by SIGKILL"]


def test_a_follower_that_cannot_load_fails_the_load_with_its_error(tmp_path):
    """Rank 0 reads an intact file; the other one finds it broken."""
    group = RankGroup(0, 2, torch.device("cpu"))
    followers = Followers(group)
    try:
        setup = Setup(
            path=str(tmp_path), rank=1, ranks=2, device="cpu", dtype="float32", load_format="auto", slots=1,
            window=64, rows_max=64, page_tokens=16, threads=1, kernel_cache="",
            meeting=str(followers.meeting),
        )  # fmt: skip
        followers.load([setup])
        with pytest.raises(ModelFileError, match=r"rank 1: .*config\.json"):
            followers.begin(8)
    finally:
        followers.close()
    (pid,) = followers.pids
    wait_until(lambda: not is_running(pid), "the follower outlives its model")
    assert not followers.meeting.parent.exists()
