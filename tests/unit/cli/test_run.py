"""run: prompts from arguments and pipes, answers on stdout, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from stretto.cli.run import _asked, _prompt
from tests.unit.cli.conftest import TIMEOUT_S
from tests.unit.media_files.files import picture_bytes, tone_wav, two_halves

SIMULATED = ("--backend", "simulated")
ENDLESS = (*SIMULATED, "--context-window", "4M", "--ignore-eos", "-n", "4000000")


@pytest.mark.parametrize(
    ("given", "piped", "expected"),
    [
        ("ask", None, "ask"),
        (None, "text", "text"),
        ("sum up", "a\nb", "sum up\n\na\nb"),
        ("ask", "", "ask"),
        ("", None, ""),
        (None, None, None),
    ],
)
def test_argument_and_pipe_make_one_prompt(given, piped, expected):
    assert _prompt(given, piped) == expected


def test_system_prompt_and_raw_text():
    assert [message["role"] for message in _asked("hi", "be brief", raw=False, media=())] == [
        "system",
        "user",
    ]
    assert _asked("hi", None, raw=False, media=()) == [{"role": "user", "content": "hi"}]
    assert _asked("Once upon", None, raw=True, media=()) == "Once upon"


def test_the_answer_is_all_of_stdout(shell):
    ended = shell("run", "hello", "-n", "7", *SIMULATED)
    assert ended.code == 0
    assert ended.out.endswith("\n")
    assert 0 < len(ended.out) <= 7 * 4 + 1
    assert ended.err == ""


def test_an_answer_without_max_tokens_is_truncated_with_a_note(shell):
    ended = shell("run", "hello", "--ignore-eos", "--stats", *SIMULATED)
    assert ended.code == 0
    assert "note: the answer was truncated after 1024 tokens; -n N allows more" in ended.err
    assert "1024 tokens at" in ended.err


def test_piped_text_is_the_prompt(shell):
    """The simulated model's answer depends on its whole prompt, and on nothing else."""
    options = ("-n", "12", "--seed", "1", *SIMULATED)
    whole = shell("run", "sum up\n\nthe text", *options)
    assert shell("run", "sum up", *options, stdin=b"the text\n").out == whole.out
    assert shell("run", *options, stdin=b"sum up\n\nthe text").out == whole.out
    assert shell("run", "sum up", *options).out != whole.out


def test_a_seed_repeats_the_answer(shell):
    answers = [shell("run", "hello", "-n", "12", "--seed", seed, *SIMULATED).out for seed in ("1", "1", "2")]
    assert answers[0] == answers[1]


def test_a_prompt_that_looks_like_a_flag(shell):
    assert shell("run", "-n", "3", *SIMULATED, "--", "--help").code == 0


def test_stats_go_to_stderr(shell):
    ended = shell("run", "hello", "-n", "5", "--stats", *SIMULATED)
    assert "5 tokens at" in ended.err
    assert "ended by length" in ended.err


def test_config_names_the_settings(shell, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("defaults: {backend: simulated}\n")
    assert shell("run", "hello", "-n", "3", "--config", other).code == 0


def test_the_only_model_of_the_file_is_taken(shell, tmp_path):
    (tmp_path / "stretto.yaml").write_text("models:\n  toy: {backend: simulated}\n")
    assert shell("run", "hello", "-n", "3").code == 0


def test_a_real_model_answers(shell, dense):
    ended = shell("run", "-m", dense, "hello", "-n", "4", "-t", "0", "--n-seq-max", "1")
    assert (ended.code, ended.out.strip() != "") == (0, True), ended
    assert all(line.startswith("note: ") for line in ended.err.splitlines())


@pytest.mark.slow
def test_a_schema_shapes_the_answer(shell, dense, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"enum": ["yes", "no"]}))
    ended = shell("run", "-m", dense, "hello", "--json-schema", path, "-n", "16")
    assert ended.code == 0, ended
    assert json.loads(ended.out) in ("yes", "no")


def interrupted(process) -> tuple[int, bytes, bytes, float]:
    """Wait for the first text, press Ctrl-C, and see how and how soon it ends."""
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    assert first, process.communicate(timeout=TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    pressed_s = time.monotonic()
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, first + out, err, time.monotonic() - pressed_s


def test_ctrl_c_in_mid_stream(shell):
    process = shell.start("run", "hello", *ENDLESS)
    code, out, err, took_s = interrupted(process)
    assert code == 130
    assert out
    assert b"Traceback" not in err
    assert took_s < 10


def test_ctrl_c_in_mid_stream_of_a_real_model(shell, dense):
    options = ("--ignore-eos", "--context-window", "100k", "--n-seq-max", "1", "--cache", "none")
    code, _, err, took_s = interrupted(shell.start("run", "-m", dense, "hello", *options))
    assert code == 130, err
    assert b"Traceback" not in err
    assert took_s < 20


def test_ctrl_c_while_the_model_loads(shell, dense):
    process = shell.start("run", "-m", dense, "hello", "-n", "100000")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, err
    assert b"Traceback" not in err


def test_a_client_disconnects(shell):
    """`stretto run … | head -c 1` ends quietly."""
    process = shell.start("run", "hello", *ENDLESS)
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(TIMEOUT_S) == 141
    assert err == b""


def test_pictures_and_sounds_are_part_of_the_prompt(shell, tmp_path):
    (tmp_path / "red.png").write_bytes(picture_bytes(two_halves(64, 64), "PNG"))
    (tmp_path / "tone.wav").write_bytes(tone_wav(1.0))
    red, sound = str(tmp_path / "red.png"), str(tmp_path / "tone.wav")
    ask = ("run", "What is this?", *SIMULATED, "--mmproj", "eyes", "-n", "5", "-t", "0", "--stats")

    def prompt_tokens(*flags):
        ended = shell(*ask, *flags)
        assert ended.code == 0, ended.err
        return int(re.search(r"(\d+) prompt tokens", ended.err)[1])

    bare = prompt_tokens()
    assert prompt_tokens("--image", red) == bare + 6
    assert prompt_tokens("--image", red, "--image", red, "--audio", sound) == bare + 6 + 6 + 10


def test_pictures_that_cannot_be_used_are_named(shell, tmp_path):
    (tmp_path / "no.png").write_bytes(b"hello")
    for flags, said in (
        (("--image", str(tmp_path / "no.png"), "--mmproj", "eyes"), "not a picture of a known format"),
        (("--image", "missing.png", "--mmproj", "eyes"), "missing.png cannot be read"),
        (("--image", str(tmp_path / "no.png")), "takes no pictures"),
        (("--image", str(tmp_path / "no.png"), "--raw"), "--raw has no place"),
    ):
        ended = shell("run", "What is this?", *SIMULATED, *flags)
        assert ended.code != 0
        assert said in ended.err
