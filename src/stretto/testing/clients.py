"""Simulated clients: they send requests, hold conversations, cancel, and check every token.

A client knows the only right text for its request (the simulated model is a hash), so it detects anything of
another request, tenant, chunk or cache that leaks into its answer.
"""

from __future__ import annotations

import random
from array import array

from stretto.backends.simulated.model import SimulatedModel, cell_scope
from stretto.core.media import MediaRows
from stretto.core.request import AdapterGroup, AdapterUse, Priority, Request, SamplingParams
from stretto.core.tick import End, Terminal
from stretto.errors import InvariantError
from stretto.testing.scenario import VOCAB, Scenario
from stretto.testing.simulated_media import picture, tokens_of

EOS = 0


class Conversation:
    """Messages so far, as tokens and pictures, with the offsets where they end."""

    __slots__ = ("boundaries", "media", "salt", "tenant", "tokens")

    def __init__(self, tenant: str, salt: str) -> None:
        self.tenant = tenant
        self.salt = salt
        self.tokens: array[int] = array("i")
        self.boundaries: list[int] = []
        self.media: list[MediaRows] = []

    def show(self, item: MediaRows) -> None:
        """The next message begins with a picture; `add` ends it."""
        self.media.append(item)
        self.tokens.extend(tokens_of(item))

    def add(self, tokens: array[int]) -> None:
        self.tokens.extend(tokens)
        self.boundaries.append(len(self.tokens))


class Witness:
    """One accepted request: the text it must get, what it got, and how it ended."""

    __slots__ = (
        "cells",
        "conversation",
        "drafted",
        "end",
        "model",
        "output",
        "plans_left",
        "request",
        "scope",
        "stop_kept",
    )

    def __init__(self, request: Request, conversation: Conversation | None, model: SimulatedModel) -> None:
        self.request = request
        self.conversation = conversation
        self.model = model
        self.scope = cell_scope(request)
        self.cells = model.prompt_cells(request)
        self.output: array[int] = array("i")
        self.end: Terminal | None = None
        self.plans_left: int | None = None  # set when cancelled: plans until it must be over
        self.stop_kept = -1
        self.drafted = 0

    def take(self, token: int) -> None:
        if self.end is not None:
            raise InvariantError(f"{self.request.id} got a token after its end")
        right = self.model.next_token(self.cells.tobytes(), self.request.params.seed)
        if token != right:
            at = len(self.output)
            raise InvariantError(f"{self.request.id}: output {at} is {token}, alone it would be {right}")
        self.output.append(token)
        self.cells.append(self.model.generated(self.scope, token))

    def finish(self, terminal: Terminal, pool_tokens: int) -> None:
        if self.end is not None:
            raise InvariantError(f"{self.request.id} ended twice: {self.end} and {terminal}")
        self.end = terminal
        if terminal.generated_tokens != len(self.output):
            raise InvariantError(f"{self.request.id}: {terminal.generated_tokens} tokens were announced")
        if terminal.end is not End.FINISHED or self.stop_kept >= 0:
            return
        params = self.request.params
        stopped = (
            EOS in params.stop_token_ids and not params.ignore_eos and self.output[-1:] == array("i", [EOS])
        )
        full = len(self.output) == min(params.max_tokens, pool_tokens - len(self.request.tokens))
        if (terminal.reason == "stop") != stopped or not (stopped or full):
            raise InvariantError(
                f"{self.request.id} finished by {terminal.reason} after {len(self.output)} tokens"
            )


class Clients:
    """All clients of one simulation: draws new requests, keeps conversations that may continue."""

    def __init__(self, scenario: Scenario, model: SimulatedModel) -> None:
        self._s = scenario
        self._t = scenario.traffic
        self._model = model
        self._r = random.Random(f"{scenario.seed}:clients")
        self._groups_r = random.Random(f"{scenario.seed}:adapters")
        self._media_r = random.Random(f"{scenario.seed}:pictures")
        self._number = 0
        self._systems = self._system_prompts()
        self._resting: list[Conversation] = []
        self.witnesses: dict[str, Witness] = {}

    def _system_prompts(self) -> list[array[int]]:
        """Each later one may begin like the first, or go on where it ends: their caches must not mix."""
        prompts: list[array[int]] = []
        for _ in range(self._t.systems):
            text = self._text(self._t.system_tokens)
            shared = self._r.choice((0, len(text) // 2, len(text))) if prompts else 0
            prompts.append(prompts[0][:shared] + text if shared else text)
        return prompts

    def _text(self, tokens: int) -> array[int]:
        return array("i", [self._r.randrange(1, VOCAB) for _ in range(max(1, tokens))])

    def arrivals(self) -> list[tuple[Request, Conversation | None]]:
        """New requests of this moment."""
        count = 0
        while self._r.random() < self._t.requests_per_tick / (1 + self._t.requests_per_tick) and count < 64:
            count += 1
        if count and self._r.random() < self._t.burst:
            count += self._r.randrange(40)
        found: list[tuple[Request, Conversation | None]] = []
        for _ in range(count):
            found += self._hostile() if self._r.random() < self._t.hostile else self._request()
        return found

    def _request(self) -> list[tuple[Request, Conversation | None]]:
        running = [
            w.conversation for w in self.witnesses.values() if w.end is None and w.conversation is not None
        ]
        if running and self._r.random() < self._t.regenerate:
            conversation = self._r.choice(running)
        elif self._resting and self._r.random() < self._t.next_turn:
            conversation = self._resting.pop(self._r.randrange(len(self._resting)))
            self._show(conversation)
            conversation.add(self._text(self._r.randint(1, self._t.message_tokens)))
        else:
            conversation = self._begin()
        request = self._make(conversation, self._params())
        found: list[tuple[Request, Conversation | None]] = [(request, conversation)]
        if self._r.random() < self._t.forks:
            found += [(self._fork(request), None) for _ in range(self._r.randint(1, 3))]
        return found

    def _begin(self) -> Conversation:
        flooding = self._r.random() < self._t.flood
        tenant = 0 if flooding else self._r.randrange(self._t.tenants)
        conversation = Conversation(f"tenant{tenant}", f"salt{self._r.randrange(self._t.salts)}")
        if self._systems:
            conversation.add(self._r.choice(self._systems))
        length = self._r.randint(1, self._t.message_tokens)
        if self._r.random() < self._t.long_prompt:
            length = self._r.randrange(1, self._s.capabilities.pool_tokens)
        self._show(conversation)
        conversation.add(self._text(length))
        return conversation

    def _show(self, conversation: Conversation) -> None:
        """At times one picture, or two in a row."""
        traffic, rows_max = self._t.media, self._s.capabilities.media_rows_max
        for _ in range(2 if traffic.share else 0):
            if self._media_r.random() < traffic.share:
                number = self._media_r.randrange(traffic.pictures)
                conversation.show(picture(number, len(conversation.tokens), rows_max))

    def _params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self._r.randint(1, 2 * self._t.answer_tokens),
            seed=self._r.randrange(3),
            stop_token_ids=frozenset({EOS}),
            ignore_eos=self._r.random() < 0.2,
            draft_tokens=self._r.randint(1, 4) if self._r.random() < self._t.drafts else 0,
            grammar="a grammar" if self._r.random() < self._t.grammar else "",
        )

    def _adapters(self) -> AdapterGroup:
        """Drawn for each request, so that one conversation is continued with different adapters."""
        number = self._groups_r.randrange(self._t.adapter_groups)
        if number == 0:
            return ()
        first = AdapterUse(f"adapter{number}", 1.0)
        return (first,) if number % 3 else (first, AdapterUse("other", 0.5))

    def _make(self, conversation: Conversation, params: SamplingParams) -> Request:
        self._number += 1
        priority = Priority.DEFAULT
        if self._r.random() < self._t.urgent:
            priority = Priority.URGENT
        elif self._r.random() < self._t.background:
            priority = Priority.BACKGROUND
        return Request(
            id=f"r{self._number}",
            tokens=array("i", conversation.tokens),
            params=params,
            boundaries=tuple(conversation.boundaries[:-1]),
            priority=priority,
            tenant=conversation.tenant,
            cache_salt=conversation.salt,
            adapters=self._adapters(),
            media=tuple(conversation.media),
            streamed=self._number % 4 < 4 * self._t.streamed,
        )

    def _fork(self, parent: Request) -> Request:
        self._number += 1
        params = self._params()
        return Request(
            id=f"r{self._number}",
            tokens=parent.tokens,
            params=params,
            boundaries=parent.boundaries,
            priority=parent.priority,
            tenant=parent.tenant,
            cache_salt=parent.cache_salt,
            adapters=parent.adapters,
            fork_of=parent.id,
            media=parent.media,
            streamed=parent.streamed,
        )

    def _hostile(self) -> list[tuple[Request, Conversation | None]]:
        self._number += 1
        kind = self._r.randrange(5)
        tokens = self._text(3)
        request_id = f"r{self._number}"
        max_tokens = 4
        if kind == 0:
            tokens = array("i")
        elif kind == 1:
            tokens = self._text(self._s.capabilities.pool_tokens + self._r.randrange(3))
        elif kind == 2:
            tokens.append(VOCAB + self._r.randrange(9))
        elif kind == 3:
            max_tokens = 0
        else:
            request_id = next((w.request.id for w in self.witnesses.values() if w.end is None), request_id)
        return [(Request(id=request_id, tokens=tokens, params=SamplingParams(max_tokens=max_tokens)), None)]

    def accepted(self, request: Request, conversation: Conversation | None) -> Witness:
        witness = Witness(request, conversation, self._model)
        self.witnesses[request.id] = witness
        return witness

    def ended(self, witness: Witness) -> None:
        """Add the answer to the conversation, at times rewritten as a template would for the next turn."""
        del self.witnesses[witness.request.id]
        conversation, terminal = witness.conversation, witness.end
        if conversation is None or terminal is None or terminal.end is not End.FINISHED:
            return
        if len(conversation.tokens) != len(witness.request.tokens):
            return  # another request has continued it meanwhile
        answer = witness.output
        if self._r.random() < self._t.rewrite:
            answer = answer[: self._r.randrange(len(answer) + 1)] + self._text(2)
        if len(conversation.tokens) + len(answer) + self._t.message_tokens < self._s.capabilities.pool_tokens:
            conversation.add(answer)
            self._resting.append(conversation)
            if len(self._resting) > 32:
                self._resting.pop(0)
