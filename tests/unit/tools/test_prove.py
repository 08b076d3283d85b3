"""A proof holds only if its command showed something, not merely if it did not fail."""

from __future__ import annotations

import pytest

from tools.claims import ALL, Proof
from tools.prove import why_not

SCRIPT = Proof("a", "b", ("python", "x.py"), "--json")
TESTS = Proof("a", "b", ("python", "-m", "pytest", "-q", "tests"))


@pytest.mark.parametrize(
    ("proof", "code", "said", "figures", "held"),
    [
        (SCRIPT, 0, "", {"held": True}, True),
        (SCRIPT, 1, "", {"held": True}, False),
        (SCRIPT, 0, "", None, False),
        (SCRIPT, 0, "", {}, False),
        (TESTS, 0, "12 passed in 3.1s", None, True),
        (TESTS, 0, "12 passed, 3 skipped in 3.1s", None, True),
        (TESTS, 0, "3 skipped in 0.1s", None, False),
        (TESTS, 0, "1 passed, 3 skipped in 0.1s", None, False),
        (TESTS, 0, "no tests ran in 0.1s", None, False),
        (TESTS, 1, "1 failed, 12 passed in 3.1s", None, False),
    ],
)
def test_a_proof_holds_only_if_its_command_showed_something(proof, code, said, figures, held):
    assert (why_not(proof, code, said, figures) == "") == held


def test_every_claim_has_its_own_name_and_command():
    assert len(ALL) > 20
    assert len({proof.name for proof in ALL}) == len(ALL)
    assert len({proof.command for proof in ALL}) == len(ALL)
