"""Pictures and sounds over HTTP, through the official clients, to a worker with the simulated backend."""

from __future__ import annotations

import base64
import concurrent.futures
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from PIL import Image

from benchmarks.server_process import ServerProcess
from tests.unit.media_files.files import picture_bytes, tone_wav, wav

ROWS = 4 + 2  # of a picture of 64 x 64 pixels: a row for 32 x 32, and a token on either side


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def png(width: int = 64, height: int = 64, colour: str = "red") -> bytes:
    return picture_bytes(Image.new("RGB", (width, height), colour), "PNG")


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{encoded(data)}"


def asked(*parts: bytes | str) -> list[dict[str, Any]]:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


@pytest.fixture(scope="module")
def seeing() -> Iterator[ServerProcess]:
    with ServerProcess("--backend", "simulated", "--mmproj", "eyes", "--api-processes", "2") as started:
        yield started


@pytest.fixture(scope="module")
def client(seeing: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def answer(client: openai.OpenAI, messages: list[dict[str, Any]], **options: Any) -> Any:
    chosen = {"max_tokens": 8, "temperature": 0, "seed": 1, **options}
    return client.chat.completions.create(model="simulated", messages=messages, **chosen)  # type: ignore[arg-type]


def text(reply: Any) -> str:
    return str(reply.choices[0].message.content)


def media_tokens(reply: Any) -> tuple[int, int]:
    details = reply.usage.prompt_tokens_details
    return details.image_tokens, details.audio_tokens


def test_a_picture_counts_in_the_prompt_and_changes_the_answer(client: openai.OpenAI) -> None:
    red = answer(client, asked("What is this? ", png()))
    blue = answer(client, asked("What is this? ", png(colour="blue")))
    bare = answer(client, asked("What is this? "))
    assert red.usage.prompt_tokens == blue.usage.prompt_tokens == bare.usage.prompt_tokens + ROWS
    assert [media_tokens(reply) for reply in (red, bare)] == [(4, 0), (0, 0)]
    assert len({text(red), text(blue), text(bare)}) == 3
    assert text(answer(client, asked("What is this? ", png()))) == text(red)


def test_the_place_of_a_picture_counts(client: openai.OpenAI) -> None:
    before, after = asked(png(), "What is this?"), asked("What is this?", png())
    assert text(answer(client, before)) != text(answer(client, after))


def test_several_pictures_and_streams(client: openai.OpenAI) -> None:
    messages = asked("One ", png(), " and two ", png(colour="blue"))
    whole = answer(client, messages)
    stream = answer(client, messages, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == text(whole)


def test_n_answers_share_a_picture(client: openai.OpenAI) -> None:
    reply = answer(client, asked("Look ", png()), n=3, temperature=1)
    assert len(reply.choices) == 3
    assert reply.usage.prompt_tokens == answer(client, asked("Look ", png())).usage.prompt_tokens
    assert media_tokens(reply) == (4, 0)


def test_text_that_looks_like_a_mark_stays_text(client: openai.OpenAI) -> None:
    marks = "".join(map(chr, range(0xE000, 0xE010)))
    plain = answer(client, asked(f"{marks} <__media__> <image>"))
    seen = answer(client, asked(f"{marks} <__media__> <image>", png()))
    assert seen.usage.prompt_tokens == plain.usage.prompt_tokens + ROWS


def test_later_turns_reuse_the_picture(client: openai.OpenAI) -> None:
    messages = asked("Describe this picture in many words. " * 20, png(256, 256))
    first = answer(client, messages)
    messages = [
        *messages,
        {"role": "assistant", "content": text(first)},
        {"role": "user", "content": "And now?"},
    ]
    second = answer(client, messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 8


def test_sounds(client: openai.OpenAI) -> None:
    def heard(data: bytes) -> Any:
        part = {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}
        return answer(client, [{"role": "user", "content": [{"type": "text", "text": "Listen"}, part]}])

    second, two = heard(tone_wav(1.0)), heard(tone_wav(2.0, rate=48_000))
    assert two.usage.prompt_tokens == second.usage.prompt_tokens + 10
    assert [media_tokens(reply) for reply in (second, two)] == [(0, 10), (0, 20)]


def test_transcriptions(client: openai.OpenAI) -> None:
    def heard(data: bytes, **options: Any) -> Any:
        return client.audio.transcriptions.create(model="simulated", file=("x.wav", data), **options)

    one, two = heard(tone_wav(1.0)), heard(tone_wav(2.0))
    assert one.text
    assert two.usage.input_tokens == one.usage.input_tokens + 10
    details = two.usage.input_token_details
    assert (details.audio_tokens, details.text_tokens) == (20, two.usage.input_tokens - 20)
    assert (
        heard(tone_wav(1.0), language="de", prompt="Names: Ada").usage.input_tokens > one.usage.input_tokens
    )
    for data, options, said in (
        (b"hello", {}, "known format"),
        (b"ID3" + bytes(99), {}, "MP3"),
        (tone_wav(0.1), {"temperature": 7}, "from 0 to 1"),
        (tone_wav(0.1), {"response_format": "srt"}, "not supported"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            heard(data, **options)


def test_responses(client: openai.OpenAI) -> None:
    def said(*parts: dict[str, Any]) -> Any:
        items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What is this? "}, *parts]}]
        return client.responses.create(model="simulated", input=items, max_output_tokens=8)

    seen = said({"type": "input_image", "detail": "auto", "image_url": data_url(png())})
    assert seen.usage.input_tokens == said().usage.input_tokens + ROWS
    assert seen.usage.input_tokens_details.image_tokens == 4


def test_anthropic_blocks_and_tool_results(seeing: ServerProcess) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": encoded(png())},
    }

    def said(content: list[Any], before: tuple[Any, ...] = ()) -> int:
        messages: Any = [*before, {"role": "user", "content": content}]
        usage = claude.messages.create(model="simulated", max_tokens=4, messages=messages).usage
        return usage.input_tokens + (usage.cache_read_input_tokens or 0)

    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    before = ({"role": "user", "content": "Look"}, {"role": "assistant", "content": [call]})
    with anthropic.Anthropic(base_url=seeing.url, api_key="none", max_retries=0) as claude:
        ask = {"type": "text", "text": "What is this?"}
        assert said([image, ask]) == said([ask]) + ROWS
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t1"}
        with_picture = said([{**result, "content": [ask, image]}], before)
        assert with_picture == said([{**result, "content": [ask]}], before) + ROWS


def test_the_model_says_what_it_takes(seeing: ServerProcess) -> None:
    model = httpx.get(f"{seeing.url}/v1/models", trust_env=False).json()["data"][0]
    assert model["modalities"] == ["text", "image", "audio"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([b"not a picture"], "known format"),
        ([png()[:60]], "truncated or damaged"),
        ([picture_bytes(Image.new("1", (30_000, 100)), "PNG")], "too large"),
        ([picture_bytes(Image.new("1", (6_000, 6_000)), "PNG")], "too large"),
        ([png(64, 1)], "one pixel high"),
        ([png(1, 64)], "one pixel wide"),
        ([png(4, 4)] * 100, "100 pictures and sounds; at most 16"),
    ],
)
def test_bad_pictures_are_refused(client: openai.OpenAI, parts: list[bytes], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        answer(client, asked("What is this?", *parts))


def test_other_bad_input(client: openai.OpenAI) -> None:
    def sound(data: bytes, kind: str = "wav") -> list[dict[str, Any]]:
        part = {"type": "input_audio", "input_audio": {"data": encoded(data), "format": kind}}
        return [{"role": "user", "content": [part]}]

    for messages, said in (
        (sound(wav(bytes(8_000 * 700), rate=8_000, bits=8)), "700 s is too long"),
        (sound(b"ID3" + bytes(100), "mp3"), "MP3"),
        (sound(wav(b"\0\0\xc0\x7f" * 4, code=3, bits=32)), "NaN"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,$"}}],
                }
            ],
            "base64",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}],
                }
            ],
            "does not fetch",
        ),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            answer(client, messages)


def test_a_model_without_eyes_says_what_would_help() -> None:
    with (
        ServerProcess("--backend", "simulated") as blind,
        openai.OpenAI(base_url=f"{blind.url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="simulated takes no pictures") as refusal:
            answer(client, asked("What is this?", png()))
        assert "mmproj" in refusal.value.message
        assert text(answer(client, asked("Still there?")))
        model = httpx.get(f"{blind.url}/v1/models", trust_env=False).json()["data"][0]
        assert model["modalities"] == ["text"]


def wait_until_ready(server: ServerProcess, timeout_s: float = 60.0) -> None:
    ends_s = time.monotonic() + timeout_s
    while httpx.get(f"{server.url}/readyz", trust_env=False).status_code != 200:
        assert time.monotonic() < ends_s, "the server did not become ready again"
        time.sleep(0.05)


def test_requests_with_pictures_survive_the_death_of_the_worker(seeing: ServerProcess) -> None:
    """Those that have delivered nothing are sent once more, with their pictures."""
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        expected = text(answer(client, asked("Before ", png(640, 640))))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(answer, client, asked("Before ", png(640, 640))) for _ in range(4)]
            os.kill(seeing.worker_pid(), signal.SIGKILL)
            ends = [one.exception() or text(one.result()) for one in running]
        kinds = {end if isinstance(end, str) else type(end).__name__ for end in ends}
        assert kinds <= {expected, "InternalServerError"}, kinds
        wait_until_ready(seeing)
        assert text(answer(client, asked("Before ", png(640, 640)))) == expected
