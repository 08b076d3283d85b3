"""Changes of the device's tables: noted by an update, taken by the pass that follows."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from stretto.backends.torch.inputs import send_columns
from stretto.backends.torch.staging import Staging
from stretto.backends.torch.tables import Tables
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Binding, TableUpdate

CPU = torch.device("cpu")


@pytest.fixture
def staging():
    return Staging(CPU, 256)


@pytest.fixture
def tables(staging):
    return Tables(slots=3, window=64, page_tokens=16, pages=20, device=CPU, staging=staging)


def bound(slot, tokens):
    return Binding(slot, Request("r", array("i", range(tokens)), SamplingParams()), array("i"))


def test_the_columns_of_a_pass_bring_the_changes(tables, staging):
    tables.update([TableUpdate(1, 0, (7, 9))], [bound(1, 20)])
    target = torch.zeros(4, dtype=torch.int32)
    send_columns(target, [np.array([1, 2], np.int32), np.array([3, 4], np.int32)], tables, staging)
    assert target.tolist() == [1, 2, 3, 4]
    assert tables.block_tables[1].tolist() == [7, 9, 0, 0]
    assert tables.prompt_lens.tolist() == [0, 20, 0, 0]


def test_updates_without_a_pass_between_them_keep_their_order(tables):
    tables.update([TableUpdate(0, 0, (4, 5))], [])
    tables.update([TableUpdate(0, 0, ())], [])
    tables.update([TableUpdate(0, 0, (6,))], [])
    tables.flush()
    assert tables.block_tables[0].tolist()[:1] == [6]


def test_changes_are_applied_once(tables):
    tables.update([TableUpdate(2, 0, (3,))], [])
    tables.flush()
    tables.block_tables[2, 0] = 11
    tables.flush()
    assert tables.block_tables[2, 0] == 11
    assert tables.take_changes() == ()
