"""The store of adapters: leases that wait, files that cannot be read, and its thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from stretto.backends.adapters import AdapterLease, AdapterSource, AdapterStore
from stretto.errors import AdapterFileError


@dataclass(frozen=True)
class Loaded:
    name: str
    size_bytes: int = 7


def make(loaded_max: int, load=lambda name, _: Loaded(name), **more) -> AdapterStore[Loaded]:
    sources = {name: AdapterSource(Path(name)) for name in ("ada", "bob", "cyd", "bad")}
    return AdapterStore(sources, load, loaded_max=loaded_max, **more)


def lease(store: AdapterStore[Loaded], *names: str) -> AdapterLease:
    return store.lease(store.group([(name, None) for name in names]))


def test_a_lease_never_blocks_and_tells_when_its_adapters_are_in_memory():
    opened = threading.Event()

    def load(name, _):
        assert opened.wait(10)
        return Loaded(name)

    store = make(2, load)
    ada, told = lease(store, "ada"), threading.Event()
    ada.watch(lambda error: told.set())
    assert not ada.ready
    opened.set()
    assert told.wait(10)
    assert ada.ready
    assert store.get("ada").name == "ada"
    at_once = []
    lease(store, "ada").watch(at_once.append)
    assert at_once == [None]
    store.stop()


def test_a_lease_waits_for_a_place_and_gets_it_when_another_is_released():
    store = make(1, threaded=False)
    ada = lease(store, "ada")
    store.load_next()
    bob, told = lease(store, "bob"), []
    bob.watch(told.append)
    assert not store.unread
    usage = {each.name: (each.loaded, each.requests) for each in store.usage()}
    assert (usage["ada"], usage["bob"]) == ((True, 1), (False, 1))
    ada.release()
    ada.release()  # once is enough
    store.load_next()
    assert (told, bob.ready) == ([None], True)
    assert [each.name for each in store.take_retired()] == ["ada"]


def test_a_released_lease_does_not_wait_any_more():
    store = make(1, threaded=False)
    ada, bob, cyd = lease(store, "ada"), lease(store, "bob"), lease(store, "cyd")
    store.load_next()
    bob.release()
    ada.release()
    store.load_next()
    assert cyd.ready
    assert not bob.ready


def test_a_file_that_cannot_be_read_fails_its_leases_and_frees_their_places():
    def load(name, _):
        if name == "bad":
            raise AdapterFileError("ranks 4 and 3")
        return Loaded(name)

    store = make(2, load, threaded=False)
    both, again, cyd = lease(store, "ada", "bad"), lease(store, "bad"), lease(store, "cyd")
    errors: list[object] = []
    both.watch(errors.append)
    again.watch(errors.append)
    while store.unread:
        store.load_next()
    assert [str(error) for error in errors] == ["ranks 4 and 3"] * 2
    assert cyd.ready
    for one in (both, again, cyd):
        one.release()
    fresh = lease(store, "ada", "bob")
    while store.unread:
        store.load_next()
    assert fresh.ready
    with pytest.raises(AdapterFileError, match="ranks 4 and 3"):
        both.wait()


def test_an_unforeseen_error_of_a_load_ends_the_request_and_not_the_thread():
    def load(name, _):
        if name == "bad":
            raise ZeroDivisionError
        return Loaded(name)

    store = make(1, load)
    bad = lease(store, "bad")
    with pytest.raises(AdapterFileError, match="bad cannot be loaded"):
        bad.wait()
    bad.release()
    lease(store, "ada").wait()
    assert [each.name for each in store.close()] == ["ada"]
