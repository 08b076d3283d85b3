"""Requests for a simulated cluster: conversations, recorded traces, tenants with unequal load.

A prompt is a row of units. One unit stands for a block of tokens, and equal units are equal texts, so a
million prompts need no tokens; where a real scheduler runs them, `tokens_of` spells them out.
"""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stretto.core.blocks import BLOCK_TOKENS, block_hashes
from stretto.core.request import Scope
from stretto.loadgen.traces import BLOCK_TOKENS as TRACE_BLOCK_TOKENS
from stretto.loadgen.traces import read_trace

VOCAB = 50_000
FRESH = 1 << 24  # units from here on occur once
UNITS_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of a client. `cancel_s`: when the client leaves, counted from its arrival."""

    id: str
    at_s: float
    tenant: str
    units: array[int]
    output_tokens: int
    determined: bool = True
    cancel_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.units) * BLOCK_TOKENS

    @property
    def scope(self) -> Scope:
        return Scope(f"tenant:{self.tenant}", "")

    def hashes(self, secret: bytes, *, spelled: bool) -> tuple[int, ...]:
        """Block hashes, of the tokens (`spelled`) or with one unit for each block: the same code for both."""
        if spelled:
            return block_hashes(tokens_of(self.units), self.scope, secret=secret)
        return block_hashes(self.units, self.scope, secret=secret, block_tokens=1)


@lru_cache(maxsize=4096)
def _unit_tokens(unit: int) -> bytes:
    draw = random.Random(unit)
    return array("i", [draw.randrange(1, VOCAB) for _ in range(BLOCK_TOKENS)]).tobytes()


def tokens_of(units: Iterable[int]) -> array[int]:
    tokens: array[int] = array("i")
    for unit in units:
        tokens.frombytes(_unit_tokens(unit))
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Users in conversations of some turns; users of one family share the beginning of their prompts.

    A closed loop is approximated by spacing: a user's next turn comes `think_s` after the one before, on
    average. With several tenants, families are dealt out to them in turn.
    """

    families: int = 8
    users: int = 64
    turns: int = 4
    shared_tokens: int = 2048
    turn_tokens: int = 128
    output_tokens: int = 32
    think_s: float = 10.0
    tenants: tuple[str, ...] = ("",)
    cancels: float = 0.0
    undetermined: float = 0.0

    def asks(self, seed: int) -> list[SimulatedRequest]:
        draw = random.Random(f"{seed}:families")
        fresh = itertools.count(FRESH)
        found: list[SimulatedRequest] = []
        for user in range(self.users):
            family = user % self.families
            tenant = self.tenants[(user // self.families) % len(self.tenants)]
            shared = self.shared_tokens // BLOCK_TOKENS
            units = array("i", range(family * 4096, family * 4096 + shared))
            at_s = draw.random() * self.think_s
            for turn in range(self.turns):
                units = units + array("i", itertools.islice(fresh, self.turn_tokens // BLOCK_TOKENS))
                found.append(self._ask(f"u{user}t{turn}", at_s, tenant, units, draw))
                at_s += draw.expovariate(1.0 / self.think_s)
        return sorted(found, key=lambda ask: (ask.at_s, ask.id))

    def _ask(
        self, name: str, at_s: float, tenant: str, units: array[int], draw: random.Random
    ) -> SimulatedRequest:
        return SimulatedRequest(
            id=name,
            at_s=at_s,
            tenant=tenant,
            units=units,
            output_tokens=draw.randint(1, 2 * self.output_tokens),
            determined=draw.random() >= self.undetermined,
            cancel_s=draw.expovariate(2.0) if draw.random() < self.cancels else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """Tenants that always have work: the first asks `heavy` times as often as each of the others."""

    tenants: tuple[str, ...] = ("heavy", "light", "slim")
    heavy: int = 10
    requests: int = 1500
    prompt_tokens: int = 256
    shared_tokens: int = (
        1024  # with which all prompts of a tenant but the first begin: they have a home replica
    )
    output_tokens: int = 32
    rate: float = 400.0  # requests per second, of all tenants: more than can be served, from each of them

    def asks(self, seed: int) -> list[SimulatedRequest]:
        draw = random.Random(f"{seed}:unequal")
        fresh = itertools.count(FRESH)
        weights = [self.heavy] + [1] * (len(self.tenants) - 1)
        found, at_s = [], 0.0
        for index in range(self.requests):
            at_s += draw.expovariate(self.rate)
            tenant = draw.choices(self.tenants, weights)[0]
            blocks = max(1, round(self.prompt_tokens * draw.uniform(0.5, 1.5) / BLOCK_TOKENS))
            place = self.tenants.index(tenant)
            shared = range(place * 4096, place * 4096 + self.shared_tokens // BLOCK_TOKENS) if place else ()
            units = array("i", shared) + array("i", itertools.islice(fresh, blocks))
            found.append(
                SimulatedRequest(f"r{index}", at_s, tenant, units, draw.randint(1, 2 * self.output_tokens))
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraces:
    """Recorded traces, repeated and sped up until there are `requests` of them, at `rate` per second.

    Each repetition has prompts of its own: nothing is shared between them that the trace did not share.
    """

    paths: tuple[Path, ...]
    requests: int
    rate: float
    tenants: int = 8
    prompt_max: int = 8192  # longer prompts are cut: a replica's window
    output_max: int = 1024

    def asks(self, seed: int) -> Iterator[SimulatedRequest]:
        draw = random.Random(f"{seed}:recorded")
        arrivals = [one for path in self.paths for one in read_trace(path, 1 << 30)]
        order = sorted(range(len(arrivals)), key=lambda index: arrivals[index].at_s)
        fresh, at_s, blocks_max = itertools.count(FRESH), 0.0, self.prompt_max // BLOCK_TOKENS
        each = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
        for number in range(self.requests):
            lap, place = divmod(number, len(order))
            one = arrivals[order[place]]
            at_s += draw.expovariate(self.rate)
            blocks = max(1, min(blocks_max, one.input_tokens // BLOCK_TOKENS))
            if one.blocks:
                base = (lap * 65_536) % (FRESH // each)
                named = ((block + base) * each + part for block in one.blocks for part in range(each))
                units = array("i", (unit % FRESH for unit in itertools.islice(named, blocks)))
            else:
                units = array(
                    "i", (FRESH + unit % (UNITS_MAX - FRESH) for unit in itertools.islice(fresh, blocks))
                )
            tenant = f"t{hash((lap, one.blocks[:1] or place)) % self.tenants}"
            yield SimulatedRequest(
                f"r{number}", at_s, tenant, units, max(1, min(self.output_max, one.output_tokens))
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """A stand-in for a trace: conversations of unequal popularity that come and go, in an open loop."""

    requests: int
    rate: float
    tenants: int = 8
    families: int = 256
    shared_tokens: int = 1024
    turns_max: int = 12
    turn_tokens: int = 192
    output_tokens: int = 160

    def asks(self, seed: int) -> Iterator[SimulatedRequest]:
        draw = random.Random(f"{seed}:synthetic")
        open_: list[tuple[int, array[int], int]] = []  # tenant, units so far, turns left
        fresh, at_s, shared = itertools.count(FRESH), 0.0, self.shared_tokens // BLOCK_TOKENS
        for number in range(self.requests):
            at_s += draw.expovariate(self.rate)
            if len(open_) < 512 or draw.random() < 1.0 / self.turns_max:
                family = min(int(draw.paretovariate(0.8)) - 1, self.families - 1)
                tenant = draw.randrange(self.tenants)
                units = array("i", range(family * 4096, family * 4096 + shared))
                open_.append((tenant, units, draw.randint(1, self.turns_max)))
            place = draw.randrange(len(open_))
            tenant, units, left = open_[place]
            more = (FRESH + unit % (UNITS_MAX - FRESH) for unit in fresh)
            count = max(1, round(draw.expovariate(BLOCK_TOKENS / self.turn_tokens)))
            units = units + array("i", itertools.islice(more, count))
            if left > 1:
                open_[place] = (tenant, units, left - 1)
            else:
                open_[place] = open_[-1]
                open_.pop()
            output = max(1, min(1024, round(draw.expovariate(1.0 / self.output_tokens))))
            yield SimulatedRequest(f"r{number}", at_s, f"t{tenant}", units, output)
