"""`show` checks the adapters in the settings; `run --lora` uses one."""

from __future__ import annotations

from stretto.testing.tiny_adapters import gguf_adapter


def test_show_checks_the_adapters_of_the_settings(call, dense, tmp_path):
    good = gguf_adapter(dense, tmp_path / "good.gguf", seed=1, rank=6)
    config = tmp_path / "stretto.yaml"
    adapters = f"{{good: {good}, gone: {tmp_path}/gone.gguf}}"
    config.write_text(f"models:\n  tiny:\n    path: {dense}\n    adapters: {adapters}\n")
    ended = call("--config", config, "show", "tiny")
    assert ended.code == 0, ended
    assert "rank 6" in ended.out
    assert "no adapter file" in ended.out
    assert '"name": "good"' in call("--config", config, "show", "tiny", "--json").out


def test_run_with_an_adapter_file(shell, dense, tmp_path):
    file = gguf_adapter(dense, tmp_path / "mine.gguf", seed=1)
    asked = ("run", "--model", dense, "--raw", "One two", "--max-tokens", "6", "--temperature", "0")
    plain, adapted = shell(*asked, "--lora", f"{file}=0"), shell(*asked, "--lora", file)
    assert (plain.code, adapted.code) == (0, 0), adapted
    assert plain.out != adapted.out
