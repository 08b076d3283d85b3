"""A gate's client over several replicas: one server to its callers, also while replicas die."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stretto.cluster.client import ClusterClient
from stretto.cluster.links import Patience
from stretto.cluster.replica import warm_up
from stretto.errors import PeerRefusedError, RuntimeLostError, RuntimeUnavailableError, ShuttingDownError
from stretto.rpc import messages as m
from stretto.text_client.client import TextClient
from tests.unit.cluster.rig import Replicas, cluster, params, text, until


def run(scenario) -> None:
    asyncio.run(scenario())


async def parts(stream, *, after: int, then) -> list:
    """All deltas of a stream; `then` is called once so many tokens have come."""
    found, count, called = [], 0, False
    async with asyncio.timeout(20):
        async for delta in stream:
            found.append(delta)
            count += delta.token_count
            if count >= after and not called:
                called = True
                then()
    return found


def test_requests_spread_over_replicas_and_answer_as_one_server():
    async def scenario():
        async with cluster(2) as (client, replicas):
            texts = await asyncio.gather(*(text(client, params(f"s{i}", prompt="same")) for i in range(8)))
            assert len(set(texts)) == 1
            assert {replicas.chosen.count("r0"), replicas.chosen.count("r1")} == {4}
            assert replicas.open == set()
            assert client.health.ready
            assert [model.slots for model in await client.models()] == [16]
            stats = await client.stats()
            assert stats.models[0].slots == 16
            assert sorted(slot.index for slot in stats.models[0].slot_table) == list(range(16))
            assert await client.tokenize(m.TokenizeParams(text="ab")) == await client.tokenize(
                m.TokenizeParams(text="ab")
            )
            assert client.batch_stats()["streams"]["opened"] == 8

    run(scenario)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 11}], ids=["greedy", "seeded"]
)
@pytest.mark.parametrize("after", [1, 7, 39])
def test_a_stream_is_continued_elsewhere_without_a_seam(sampling, after):
    async def scenario():
        async with cluster(3) as (client, replicas):
            undisturbed = await text(client, params("before", prompt="tell", sampling=sampling))
            stream = client.generate(params("s", prompt="tell", sampling=sampling))
            await stream.accepted()
            died = stream.link.target.replica_id
            deltas = await parts(stream, after=after, then=lambda: replicas.kill(died))
            assert "".join(delta.text for delta in deltas) == undisturbed
            assert sum(delta.token_count for delta in deltas) == 40
            assert sum(delta.start is not None for delta in deltas) <= 1
            end = deltas[-1].end
            assert (end.finish_reason, end.usage.completion_tokens) == ("length", 40)
            assert replicas.chosen[-1] != died
            assert replicas.open == set()

    run(scenario)


def test_a_stream_survives_several_deaths():
    async def scenario():
        async with cluster(4, simulated_tick_ms=3) as (client, replicas):
            undisturbed = await text(client, params("before", prompt="tell"))
            stream = client.generate(params("s", prompt="tell"))
            count, pieces = 0, []
            async for delta in stream:
                pieces.append(delta.text)
                count += delta.token_count
                if count in (5, 6, 15, 16, 25, 26) and len(replicas.targets()) > 1:
                    replicas.kill(stream.link.target.replica_id)
            assert "".join(pieces) == undisturbed
            assert len(replicas.targets()) < 4

    run(scenario)


def test_requests_without_a_token_move_by_themselves():
    async def scenario():
        async with cluster(2, simulated_tick_ms=30) as (client, replicas):
            streams = [client.generate(params(f"s{i}", max_tokens=3)) for i in range(6)]
            await asyncio.gather(*(stream.accepted() for stream in streams))
            replicas.kill("r0")
            for stream in streams:
                deltas = await parts(stream, after=99, then=lambda: None)
                assert sum(delta.token_count for delta in deltas) == 3

    run(scenario)


def test_an_unseeded_stream_ends_with_an_error_that_says_what_stands():
    async def scenario():
        async with cluster(2) as (client, replicas):
            request = params("s", sampling={"temperature": 1.0})
            stream = client.generate(request)
            with pytest.raises(RuntimeLostError, match=r"died after \d+ tokens"):
                await parts(stream, after=3, then=lambda: replicas.kill(stream.link.target.replica_id))
            assert replicas.open == set()

    run(scenario)


def test_an_unseeded_answer_that_nobody_has_seen_is_completed():
    async def scenario():
        async with cluster(2) as (client, replicas):
            stream = client.generate(params("s", sampling={"temperature": 1.0}, streamed=False))
            deltas = await parts(stream, after=3, then=lambda: replicas.kill(stream.link.target.replica_id))
            assert sum(delta.token_count for delta in deltas) == 40

    run(scenario)


def test_a_request_that_loses_too_many_replicas_ends():
    async def scenario():
        async with cluster(2, simulated_tick_ms=200) as (client, replicas):
            stream = client.generate(params("poison", max_tokens=5))
            reading = asyncio.create_task(anext(stream))
            for losses in range(4):
                await until(lambda n=losses: len(replicas.chosen) > n and stream.link is not None)
                replicas.cut(stream.link.target.replica_id)
            with pytest.raises((RuntimeLostError, RuntimeUnavailableError), match="4 replicas died"):
                await asyncio.wait_for(reading, 20)
            refused = client.generate(params("again", prompt="question poison", max_tokens=5))
            with pytest.raises(Exception, match="rejected for another"):
                await refused.accepted()

    run(scenario)


def test_cancelled_streams_leave_nothing_running():
    async def scenario():
        async with cluster(2, simulated_tick_ms=5) as (client, replicas):
            streams = [client.generate(params(f"s{i}", max_tokens=400)) for i in range(60)]
            await asyncio.gather(*(anext(aiter(stream)) for stream in streams[:20]))
            for stream in streams:
                stream.cancel()
                stream.cancel()
            assert await client.wait_idle(2.0)
            assert replicas.open == set()
            for name in ("r0", "r1"):
                sessions = replicas.worker(name).methods.sessions
                await until(lambda all_of=sessions: not any(session.streams for session in all_of))

    run(scenario)


IMPATIENT = Patience(ask_every_s=0.02, answer_s=0.1, silent_max=3)


def test_streams_of_a_replica_that_hangs_go_on_elsewhere():
    async def scenario():
        async with cluster(2, simulated_tick_ms=5, patience=IMPATIENT) as (client, replicas):
            undisturbed = await text(client, params("before", prompt="tell"))
            stream = client.generate(params("s", prompt="tell"))
            await stream.accepted()
            hung = stream.link.target.replica_id
            deltas = await parts(stream, after=3, then=lambda: replicas.hang(hung))
            assert "".join(delta.text for delta in deltas) == undisturbed
            assert replicas.open == set()

    run(scenario)


def test_a_replica_that_does_not_answer_gets_no_new_requests():
    async def scenario():
        patience = Patience(ask_every_s=0.01, answer_s=0.05, silent_max=1000)
        async with cluster(2, simulated_tick_ms=1, patience=patience) as (client, replicas):
            replicas.hang("r0")
            links = client._links
            await until(lambda: links.doubtful(replicas.targets()) == {"r0"})
            before = len(replicas.chosen)
            for index in range(6):
                assert await text(client, params(f"s{index}", max_tokens=3))
            assert set(replicas.chosen[before:]) == {"r1"}

    run(scenario)


def test_a_wrong_token_is_the_reason_why_a_gate_is_not_ready():
    async def scenario():
        async def refused(_target):
            raise PeerRefusedError("another token", hint="every part of a cluster needs the same token")

        replicas = Replicas(1)
        client = ClusterClient(replicas, refused)
        await client.start()
        await until(lambda: "tokens or certificates" in client.health.reason)
        assert not client.health.ready
        await client.close()
        await replicas.worker("r0").close()

    run(scenario)


def test_one_late_answer_breaks_no_link():
    async def scenario():
        patience = Patience(ask_every_s=0.01, answer_s=0.0, silent_max=1 << 30)
        async with cluster(1, patience=patience) as (client, replicas):
            (link,) = client._links.alive
            await until(lambda: link.silent > 3)
            assert await text(client, params("s", max_tokens=3)) != ""  # the only one: still chosen
            assert client._links.alive == [link]
            assert replicas.chosen == ["r0"]

    run(scenario)


def test_a_client_that_leaves_while_its_stream_moves_leaves_nothing_behind():
    async def scenario():
        async with cluster(2, simulated_tick_ms=5) as (client, replicas):
            stream = client.generate(params("s", max_tokens=400))
            async for _ in stream:
                break
            replicas.kill(stream.link.target.replica_id)
            replicas.kill(replicas.targets()[0].replica_id)  # none is left: it waits for a place
            reading = asyncio.create_task(anext(stream))
            await until(lambda: stream.link is None)
            stream.cancel()
            with pytest.raises((StopAsyncIteration, ShuttingDownError, asyncio.CancelledError)):
                await asyncio.wait_for(reading, 5)
            replicas.add("r9")
            assert await text(client, params("next", max_tokens=3)) != ""
            assert client.batch_stats()["cluster"]["open"] == 0
            assert replicas.open == set()
            sessions = replicas.worker("r9").methods.sessions
            await until(lambda: not any(session.streams for session in sessions))

    run(scenario)


def test_forks_run_beside_their_parent_and_move_alone():
    async def scenario():
        async with cluster(2, simulated_tick_ms=3) as (client, replicas):
            alone = await text(client, params("b", prompt="tell", sampling={"seed": 3}))
            first = client.generate(params("a", prompt="tell"))
            fork = client.generate(params("a-1", prompt="tell", fork_of="a", sampling={"seed": 3}))
            await asyncio.gather(first.accepted(), fork.accepted())
            assert first.link is fork.link
            got = await asyncio.gather(
                parts(first, after=5, then=lambda: replicas.kill(first.link.target.replica_id)),
                parts(fork, after=99, then=lambda: None),
            )
            assert "".join(delta.text for delta in got[1]) == alone

    run(scenario)


def test_a_drained_gate_refuses_and_finishes():
    async def scenario():
        async with cluster(1, simulated_tick_ms=3) as (client, _):
            running = asyncio.create_task(text(client, params("s")))
            await until(lambda: client.batch_stats()["cluster"]["open"] == 1)
            client.drain()
            with pytest.raises(ShuttingDownError):
                await text(client, params("late"))
            assert len(await running) > 0
            assert await client.wait_idle(5)

    run(scenario)


def test_a_replica_that_comes_back_is_used_again():
    async def scenario():
        async with cluster(1) as (client, replicas):
            replicas.cut("r0")
            await until(lambda: not client.health.ready)
            await until(lambda: client.health.ready)
            assert await text(client, params("s")) != ""

    run(scenario)


def test_ticks_of_all_replicas_reach_a_watcher_with_slots_of_their_own():
    async def scenario():
        async with cluster(2) as (client, _):
            seen: set[int] = set()

            async def watch():
                async for events in client.watch():
                    seen.update(span.slot for tick in events.ticks for span in tick.spans)

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0)
            await asyncio.gather(*(text(client, params(f"s{i}")) for i in range(4)))
            await until(lambda: {slot // 8 for slot in seen} == {0, 1})  # eight slots each
            assert max(seen) < 16
            watching.cancel()

    run(scenario)


@pytest.mark.parametrize("stops", [[], ["q"]], ids=["length", "stop string"])
def test_text_that_the_gate_makes_itself_goes_on_after_a_death(stops):
    """Token ids from two replicas, one text: the gate's detokenizer and stop matcher see no seam."""

    async def scenario():
        async with cluster(3, simulated_tick_ms=3) as (inner, replicas):
            client = TextClient(inner, text_in="api")
            await client.load("")
            assert await client.text_ready("")
            request = params("before", prompt="tell me", stops=stops, max_tokens=60, sampling={"seed": 5})
            undisturbed = "".join([delta.text async for delta in client.generate(request)])
            again = client.generate(msgspec.structs.replace(request, stream_id="s"))
            deltas = await parts(again, after=2, then=lambda: replicas.kill(replicas.chosen[-1]))
            assert "".join(delta.text for delta in deltas) == undisturbed
            assert deltas[-1].end.finish_reason == ("stop" if stops else "length")
            assert replicas.chosen[-1] != replicas.chosen[-2]
            assert replicas.open == set()

    run(scenario)


def test_a_warm_replica_knows_that_rows_cost_little_beside_a_pass():
    """A guess would make routers spread requests, and copy prefixes, for rows that cost nothing."""

    async def scenario():
        async with cluster(1, simulated_tick_ms=20) as (client, replicas):
            await client.load("")
            await warm_up(client)
            ((_, loaded),) = replicas.worker("r0").methods._pool.loaded()
            asked = loaded.runtime.ask(lambda state: (state.cost.row_s, state.cost.decode_s(1, 100)))
            row_s, pass_s = await asyncio.wrap_future(asked)
            assert row_s < pass_s / 10

    run(scenario)
