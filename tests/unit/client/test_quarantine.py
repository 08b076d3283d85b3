"""A request that kills workers is found and refused; whatever was in flight beside it is served."""

from __future__ import annotations

from stretto.client.quarantine import REFUSE_S, Quarantine, Standing
from stretto.client.traffic import TRIAL_S_MAX, Traffic
from stretto.rpc.messages import (
    BatchItem,
    GenerateParams,
    GenerateResult,
    StreamBatch,
    StreamEnd,
    TokenizeParams,
)
from stretto.settings import EngineSettings, GenerateBatcherSettings

POISON = "poison"


class Worker:
    """A traffic machine, and a worker that dies of one prompt as soon as it gets it."""

    def __init__(self) -> None:
        self.traffic = Traffic(EngineSettings(), GenerateBatcherSettings())
        self.now_s, self.deaths, self.ids = 0.0, 0, 0
        self.traffic.connected(0, batching=True)

    def submit(self, prompt: str, **options):
        self.ids += 1
        params = GenerateParams(stream_id=f"s{self.ids}", prompt=prompt, **options)
        return self.traffic.submit(params, now_s=self.now_s, wake=lambda: None)

    def turn(self) -> None:
        """Send what is due; die of poison, else answer everything with one token and its end."""
        self.now_s += 0.3
        self.traffic.expire(self.now_s)
        for call in self.traffic.due(self.now_s):
            sent = self.traffic.seal(call, self.now_s)
            if any(params.prompt == POISON for params in sent):
                self.die()
                return
            items = [
                BatchItem(success=True, result=GenerateResult(stream_id=p.stream_id, prompt_tokens=1))
                for p in sent
            ]
            self.traffic.answered(call, items, self.now_s)
            for params in sent:
                batch = StreamBatch(streams=[params.stream_id], texts=["x"], counts=[1])
                self.traffic.frames(batch, epoch=self.traffic.epoch, now_s=self.now_s)
                end = StreamEnd(stream_id=params.stream_id, finish_reason="stop")
                self.traffic.frames(StreamBatch(ends=[end]), epoch=self.traffic.epoch, now_s=self.now_s)

    def sent(self) -> list[str]:
        """What leaves now, and is not answered."""
        calls = self.traffic.due(self.now_s)
        return [p.stream_id for call in calls for p in self.traffic.seal(call, self.now_s)]

    def die(self) -> None:
        self.deaths += 1
        self.traffic.lost(self.now_s)
        self.traffic.connected(self.deaths, batching=True)

    def run(self, turns: int = 30) -> None:
        for _ in range(turns):
            self.turn()


def outcome(ticket) -> str:
    end = ticket.stream.end
    assert end is not None
    return end.error.code if end.error is not None else end.finish_reason


def test_a_request_that_kills_twice_is_refused_and_its_neighbours_are_served():
    worker = Worker()
    neighbours = [worker.submit(f"question {i}") for i in range(8)]
    killer = worker.submit(POISON)
    worker.run()
    assert [outcome(ticket) for ticket in neighbours] == ["stop"] * 8
    assert outcome(killer) == "request_refused"
    assert worker.deaths == 2


def test_the_same_content_is_rejected_for_every_caller_and_other_content_is_not():
    worker = Worker()
    worker.submit(POISON)
    worker.run()
    again = worker.submit(POISON, tenant="another", deadline_ms=1e6)
    assert outcome(again) == "request_refused"
    other = worker.submit(POISON + "?")
    worker.run(5)
    assert outcome(other) == "stop"
    assert worker.deaths == 2
    worker.now_s += REFUSE_S
    worker.submit(POISON)
    worker.run(2)
    assert worker.deaths == 3  # it is tried again after a while, once


def test_a_death_that_no_request_caused_costs_no_request():
    worker = Worker()
    tickets = [worker.submit(f"question {i}") for i in range(4)]
    worker.now_s += 0.3
    assert len(worker.sent()) == len(tickets)
    worker.die()
    worker.run()
    assert [outcome(ticket) for ticket in tickets] == ["stop"] * 4
    assert worker.traffic.quarantine.empty


def test_a_suspect_that_waits_for_a_slot_does_not_keep_the_others_for_ever():
    worker = Worker()
    tickets = [worker.submit(f"question {i}") for i in range(2)]
    worker.now_s += 0.3
    assert len(worker.sent()) == len(tickets)
    worker.die()
    worker.traffic.expire(worker.now_s)
    worker.now_s += 0.3
    assert worker.sent() == [tickets[0].params.stream_id]
    worker.now_s += TRIAL_S_MAX
    worker.traffic.expire(worker.now_s)
    worker.now_s += 0.3
    assert worker.sent() == [tickets[1].params.stream_id]


def test_a_cancelled_suspect_is_dropped_and_the_next_is_tried():
    worker = Worker()
    tickets = [worker.submit(f"question {i}") for i in range(3)]
    worker.now_s += 0.3
    assert len(worker.sent()) == len(tickets)
    worker.die()
    worker.traffic.cancel(tickets[0], worker.now_s)
    worker.traffic.cancel(tickets[1], worker.now_s)
    worker.run(5)
    assert outcome(tickets[2]) == "stop"


def test_in_flight_at_three_deaths_without_an_end_is_refused():
    quarantine = Quarantine()
    digest = quarantine.digest(TokenizeParams(text="x"))
    for _ in range(2):
        quarantine.died([digest], 1.0)
        assert quarantine.standing(digest, 1.0) is Standing.SUSPECT
    quarantine.died([digest], 1.0)
    assert quarantine.standing(digest, 1.0) is Standing.REFUSED


def test_completed_requests_are_cleared_and_digests_are_opaque():
    quarantine = Quarantine()
    params = GenerateParams(stream_id="a", prompt="my secret", deadline_ms=5.0, tenant="t")
    same = GenerateParams(stream_id="b", prompt="my secret", tenant="u")
    digest = quarantine.digest(params)
    assert digest == quarantine.digest(same)
    assert digest != quarantine.digest(GenerateParams(stream_id="a", prompt="my other secret"))
    assert digest != Quarantine().digest(params)  # keyed: prompts cannot be looked up
    quarantine.died([digest], 1.0)
    quarantine.end_trial(digest, passed=True)
    assert quarantine.empty
