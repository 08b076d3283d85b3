"""Block hashes: equal for equal prefixes of one scope, unrelated between scopes and secrets."""

from __future__ import annotations

from array import array

from stretto.cluster.policy.blocks import BLOCK_TOKENS, BLOCKS_MAX, block_hashes
from stretto.core.request import Scope

ALICE, BOB = Scope("tenant:alice", ""), Scope("tenant:bob", "")


def prompt(length: int, first: int = 0) -> array[int]:
    return array("i", range(first, first + length))


def test_prompts_share_the_hashes_of_their_common_blocks():
    long = block_hashes(prompt(5 * BLOCK_TOKENS), ALICE)
    short = block_hashes(prompt(3 * BLOCK_TOKENS + 5), ALICE)
    assert len(long) == 5
    assert short == long[:3]


def test_a_changed_token_changes_its_block_and_all_after_it():
    tokens = prompt(4 * BLOCK_TOKENS)
    before = block_hashes(tokens, ALICE)
    tokens[BLOCK_TOKENS] += 1
    after = block_hashes(tokens, ALICE)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]


def test_scopes_salts_and_secrets_have_nothing_in_common():
    tokens = prompt(8 * BLOCK_TOKENS)
    hashes = [
        *block_hashes(tokens, ALICE),
        *block_hashes(tokens, BOB),
        *block_hashes(tokens, Scope("tenant:alice", "salt")),
        *block_hashes(tokens, ALICE, secret=b"another cluster"),
    ]
    assert len(set(hashes)) == 4 * 8


def test_less_than_a_block_has_no_hash():
    assert block_hashes(prompt(BLOCK_TOKENS - 1), ALICE) == ()


def test_blocks_of_one_prompt_are_bounded():
    assert len(block_hashes(prompt((BLOCKS_MAX + 5) * BLOCK_TOKENS), ALICE)) == BLOCKS_MAX
