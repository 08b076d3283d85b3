"""A real worker process with llama.cpp and a tiny random model, for features the simulated backend lacks."""

from __future__ import annotations

import asyncio
import json

import pytest

from stretto.errors import InvalidGrammarError, ModelNotFoundError
from stretto.rpc import messages as m
from stretto.rpc.sockets import connect_unix
from stretto.testing import tiny_models
from tests.system.process.client import Client
from tests.system.process.running import running

SETTINGS = {"backend": "llamacpp", "n_threads": 1, "context_window": 256, "n_seq_max": 2}
X = {
    "type": "object",
    "properties": {"x": {"enum": ["a", "b"]}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": X}} for name in ("one", "two")]
HELLO = [{"role": "user", "content": "hello"}]


async def exercise(worker) -> None:
    client = Client(await connect_unix(worker.socket))
    loaded = (await client.call("model/load", m.LoadParams(model_id="tiny"))).model
    assert (loaded.backend, loaded.kind, loaded.slots) == ("llamacpp", "dense", 2)
    assert [note.stage for note in client.progress][-1] == "ready"
    with pytest.raises(ModelNotFoundError):
        await client.call("model/load", m.LoadParams(model_id=str(tiny_models.make("dense"))))
    await greedy_with_logprobs(client)
    await guided(client)
    await forced_tools(client)
    await client.call("shutdown")
    await asyncio.wait_for(client.closed, 20)


async def greedy_with_logprobs(client: Client) -> None:
    sampling = {"temperature": 0.0, "logprobs": 2}
    for name in ("a", "b"):
        await client.generate(name, tokens=[5, 6, 7], max_tokens=6, sampling=sampling, echo_tokens=True)
    assert client.tokens["a"] == client.tokens["b"]
    assert [found.token_id for found in client.logprobs["a"]] == client.tokens["a"]
    assert "".join(found.token for found in client.logprobs["a"]) == client.texts["a"]
    for found in client.logprobs["a"]:
        assert [found.token_id, found.logprob] == list(
            found.top[0][1:3]
        )  # greedy takes the most likely token
        assert found.top[0][2] >= found.top[1][2]


async def guided(client: Client) -> None:
    guidance = m.Guidance(mode="regex", value="[ab]{4}")
    end = await client.generate("regex", prompt="x", max_tokens=60, guidance=guidance)
    assert end.finish_reason == "stop"
    assert len(client.texts["regex"]) == 4
    assert set(client.texts["regex"]) <= set("ab")
    with pytest.raises(InvalidGrammarError):
        await client.generate("broken", prompt="x", guidance=m.Guidance(mode="regex", value="("))


async def forced_tools(client: Client) -> None:
    named = m.ToolUse(tools=TOOLS, choice={"type": "function", "function": {"name": "two"}})
    end = await client.generate("named", messages=HELLO, max_tokens=60, tool_use=named)
    assert end.finish_reason == "tool_calls"
    ((name, arguments),) = client.calls["named"]
    assert name == "two"
    assert json.loads(arguments)["x"] in ("a", "b")
    assert client.texts.get("named", "") == ""
    one = m.ToolUse(tools=TOOLS, choice="required", parallel=False)
    end = await client.generate("required", messages=HELLO, max_tokens=60, tool_use=one)
    assert end.finish_reason == "tool_calls"
    assert len(client.calls["required"]) == 1


def test_logprobs_grammars_and_forced_tools_through_a_real_process():
    models = {"tiny": {"path": str(tiny_models.make("dense"))}}
    with running(**SETTINGS, models=models) as worker:
        asyncio.run(exercise(worker))
        assert worker.process.wait(20) == 0
        assert "Traceback" not in worker.stderr()
