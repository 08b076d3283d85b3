"""Mutations of worker calls: bytes, structure, nesting, lengths."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import fields
from typing import Any

from stretto.core.request import SamplingParams
from stretto.rpc import messages as m
from stretto.rpc.envelope import Call, Envelope, Notification, Reply
from stretto.rpc.frames import encode

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SEEDS: list[Envelope] = [
    Call(1, "runtime/info", m.Empty()),
    Call("two", "runtime/authenticate", m.AuthParams(token="0" * 64)),
    Call(3, "stats", m.Empty()),
    Call(4, "model/load", m.LoadParams(model_id="simulated")),
    Call(5, "model/unload", m.LoadParams()),
    Call(6, "cancel", m.CancelParams(stream_id="s1")),
    Call(7, "tokenize", m.TokenizeParams(text="some words", special=True)),
    Call(8, "tokenize", m.TokenizeParams(messages=[{"role": "user", "content": "hi"}], tools=[TOOL])),
    Call(9, "detokenize", m.DetokenizeParams(tokens=[1, 2, 511])),
    Call(10, "embed", m.EmbedParams(inputs=["a", [1, 2]], dimensions=3)),
    Call(11, "rerank", m.RerankParams(query="q", documents=["a", "b"])),
    Call(12, "watch", m.WatchParams()),
    Call(13, "watch", m.WatchParams(enabled=False)),
    Call(14, "generate", m.GenerateParams(stream_id="s1", prompt="once", max_tokens=4)),
    Call(
        15,
        "generate",
        m.GenerateParams(
            stream_id="s2",
            messages=[
                {"role": "system", "content": "be"},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
            ],
            tool_use=m.ToolUse(tools=[TOOL]),
            template_options={"enable_thinking": False},
            sampling={"temperature": 0.5, "top_k": 3, "seed": 1, "logit_bias": {"5": -1.5}, "logprobs": 2},
            max_tokens=3,
            stops=["\n", "end"],
            stop_token_ids=[3],
            priority="urgent",
            tenant="t",
            cache_salt="c",
            deadline_ms=500.0,
            echo_tokens=True,
        ),
    ),
    Call(
        16,
        "batch_generate",
        m.BatchGenerateParams(
            requests=[
                m.GenerateParams(stream_id=f"b{n}", tokens=[1, 2], max_tokens=2, fork_of="b0")
                for n in range(3)
            ]
        ),
    ),
    Call(
        17,
        "generate",
        m.GenerateParams(
            stream_id="g", prompt="x", max_tokens=2, guidance=m.Guidance(mode="regex", value="a+")
        ),
    ),
    Reply(18, result=m.Empty()),
    Notification("stream.batch", m.StreamBatch(streams=["a"], texts=["t"], counts=[1])),
]
SAMPLING = sorted(field.name for field in fields(SamplingParams))
OPTIONS = ("enable_thinking", "tools", "messages", "self", "add_generation_prompt", "bos_token", "x y", "")
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        511,
        512,
        1 << 31,
        1 << 63,
        1 << 64,
        -(1 << 63),
        10**400,
        0.5,
        -0.0,
        1e308,
    ),
    *("", "x", "\x00", "😀" * 50, "a" * 5_000, "../../etc/passwd", "{{ 7 * 7 }}", "<|im_start|>", "s1", "b0"),
    *([], [[]], [None], ["s1"] * 50, list(range(300))),
    *({}, {"": None}, {"type": "function"}, {str(n): n for n in range(60)}, "required", "none"),
]


class Mutator:
    """Frames with one or more faults; the same seed gives the same frames."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bodies = [encode(envelope)[4:] for envelope in SEEDS]

    def frame(self) -> bytes:
        chosen = self._random.random()
        body = self._random.choice(self._bodies)
        if chosen < 0.30:
            return self._framed(self._free())
        if chosen < 0.60:
            return self._framed(self._by_structure(body))
        if chosen < 0.90:
            return self._framed(self._by_bytes(body))
        if chosen < 0.94:
            return self._framed(self._deep(body))
        if chosen < 0.97:
            return self._framed(self._random.randbytes(self._random.randrange(200)))
        return self._bad_length(body)

    def _framed(self, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + body

    def _bad_length(self, body: bytes) -> bytes:
        lengths = (0, 1, len(body) - 1, len(body) + 1, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1)
        return self._random.choice(lengths).to_bytes(4, "big") + body

    def _by_bytes(self, body: bytes) -> bytes:
        data = bytearray(body)
        for _ in range(self._random.randint(1, 4)):
            at = self._random.randrange(len(data) + 1)
            kind = self._random.randrange(5)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << self._random.randrange(8)
            elif kind == 1:
                data[at:at] = self._random.randbytes(self._random.randint(1, 8))
            elif kind == 2:
                del data[at : at + self._random.randint(1, 16)]
            elif kind == 3:
                other = self._random.choice(self._bodies)
                data[at:] = other[self._random.randrange(len(other)) :]
            else:
                data[at : at + 1] = self._random.choice(
                    (b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\u0000", b"\xff")
                )
        return bytes(data)

    def _by_structure(self, body: bytes) -> bytes:
        message = json.loads(body)
        for _ in range(self._random.randint(1, 3)):
            holder, key = self._place(message)
            if holder is None:
                break
            if isinstance(holder, dict) and self._random.random() < 0.2:
                holder[self._random.choice(("x", "jsonrpc", "id", "method", "params", "stream_id"))] = (
                    self._value()
                )
            elif self._random.random() < 0.15:
                del holder[key]
            else:
                holder[key] = self._value()
        return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def _free(self) -> bytes:
        """A generation with valid types and invalid values, to reach the checks after decoding."""
        params: dict[str, Any] = {"stream_id": f"f{self._random.randrange(20)}", "max_tokens": 2}
        params[self._random.choice(("prompt", "messages", "tokens"))] = self._value()
        names = self._random.sample(SAMPLING, self._random.randrange(3))
        params["sampling"] = {name: self._value() for name in names}
        if self._random.random() < 0.3:
            message = {
                "role": self._random.choice(("user", "tool", "assistant", "x")),
                "content": self._value(),
            }
            message[self._random.choice(("name", "tool_calls", "tool_call_id", "role"))] = self._value()
            params["messages"] = [message]
        if self._random.random() < 0.3:
            tool = {"type": "function", "function": {"name": "f", "parameters": self._value()}}
            choice = self._random.choice(("auto", "none", "required", {"function": {"name": "f"}}, {}))
            params["tool_use"] = {"tools": [tool, self._value()], "choice": choice}
        if self._random.random() < 0.3:
            mode = self._random.choice(("json_object", "json_schema", "regex", "grammar"))
            params["guidance"] = {"mode": mode, "value": self._value()}
        if self._random.random() < 0.2:
            params["template_options"] = {self._random.choice(OPTIONS): self._value()}
        if self._random.random() < 0.2:
            params[self._random.choice(("deadline_ms", "max_tokens", "stop_token_ids", "stops"))] = (
                self._value()
            )
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "generate", "params": params}).encode()

    def _place(self, message: Any) -> tuple[Any, Any]:
        """A random place in the tree; parameters are more likely than the envelope."""
        node = message
        holder, key = None, None
        while isinstance(node, dict | list) and node:
            holder = node
            key = self._random.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if holder is message and "params" in message and self._random.random() < 0.8:
                key = "params"
            node = node[key]
            if self._random.random() < 0.3:
                break
        return holder, key

    def _value(self) -> Any:
        value = copy.deepcopy(self._random.choice(VALUES))
        return [value] * self._random.randrange(4) if self._random.random() < 0.1 else value

    def _deep(self, body: bytes) -> bytes:
        depth = self._random.choice((10, 1_000, 20_000))
        opening, closing = self._random.choice(((b"[", b"]"), (b'{"a":', b"}")))
        nested = opening * depth + (b"1" + closing * depth if self._random.random() < 0.7 else b"")
        at = body.find(b'"params":')
        return body[: at + 9] + nested + b"}" if at >= 0 else nested
