"""Which models a worker serves, under which names, and how much memory they would take."""

from __future__ import annotations

import shutil

import pytest

from stretto.errors import ModelNotFoundError
from stretto.model_files.bundled import NAME
from stretto.rpc.heartbeat import HeartbeatReader, HeartbeatWriter
from stretto.testing import tiny_models
from stretto.worker.catalogue import SIMULATED_BYTES, Catalogue, Launch


def quiet(stage: str, fraction: float) -> None:
    """Ignores progress."""


def test_without_any_name_the_default_model_is_served(tmp_path):
    catalogue = Catalogue(Launch(cache_dir=str(tmp_path)))
    assert catalogue.ids() == (NAME,)
    assert catalogue.resolve("") == catalogue.resolve(NAME) == NAME


def test_a_path_given_at_start_is_served_by_its_files_name(tmp_path):
    path = tiny_models.make("dense")
    catalogue = Catalogue(Launch(models=(str(path),), cache_dir=str(tmp_path)))
    assert catalogue.ids() == (path.stem,)
    assert catalogue.resolve("") == path.stem
    assert catalogue.estimate_bytes(path.stem, quiet) > path.stat().st_size


@pytest.mark.parametrize("name", ["/etc/passwd", "./x.gguf", "../x", "~/model.gguf", "x" * 5000, "\x00"])
def test_a_requested_model_name_is_never_used_as_a_path(name, tmp_path):
    with pytest.raises(ModelNotFoundError):
        Catalogue(Launch(cache_dir=str(tmp_path))).resolve(name)


def test_a_folder_is_served_by_its_whole_name(tmp_path):
    folder = tmp_path / "Tiny-0.6B"
    catalogue = Catalogue(Launch(models=(str(folder),), cache_dir=str(tmp_path)))
    assert catalogue.ids() == ("Tiny-0.6B",)


def test_pulled_models_are_served_by_name_and_near_misses_get_a_hint(tmp_path):
    folder = tmp_path / "models" / "user" / "repo"
    folder.mkdir(parents=True)
    shutil.copy(tiny_models.make("dense"), folder / "tiny-Q8_0.gguf")
    catalogue = Catalogue(Launch(cache_dir=str(tmp_path)))
    kept = catalogue.resolve("tiny-Q8_0")
    assert kept.startswith("user/repo")
    assert catalogue.resolve(kept) == kept
    assert catalogue.estimate_bytes(kept, quiet) > 0
    with pytest.raises(ModelNotFoundError) as caught:
        catalogue.resolve("tiny-Q8_1")
    assert "tiny-Q8_0" in caught.value.hint


def test_listed_models_have_settings_of_their_own(tmp_path):
    flags = {"models.a.n_seq_max": 1, "models.b.n_seq_max": 3, "backend": "simulated"}
    catalogue = Catalogue(Launch(flags=flags, cache_dir=str(tmp_path)))
    assert catalogue.ids() == ("a", "b")
    assert catalogue.estimate_bytes("a", quiet) == SIMULATED_BYTES
    loaded = catalogue.load("b", quiet)
    assert loaded.description["slots"] == 3
    loaded.close()


def test_a_loaded_models_loop_beats_and_its_record_is_reused(tmp_path):
    writer = HeartbeatWriter(tmp_path / "beat")
    reader = HeartbeatReader(tmp_path / "beat")
    catalogue = Catalogue(Launch(flags={"backend": "simulated"}, cache_dir=str(tmp_path)), heartbeat=writer)
    loaded = catalogue.load(catalogue.resolve(""), quiet)
    loaded.runtime.inspect().result(10)
    found = reader.read()
    assert found is not None
    assert len(found.loops) == 1
    loaded.close()
    found = reader.read()
    assert found is not None
    assert found.loops == ()
    reader.close()
