import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from control.errors import AbortedError, ControlError, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from control.intake.resolver import Resolution
from control.plane import DownEndpoint
from proxy.config.model import MIB
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, fleet, until

Scenario = Callable[[Fleet], Awaitable[None]]


def run(scenario: Scenario, processors: int = 2, mode: str = "", **options: Any) -> None:
    async def main() -> None:
        async with fleet(processors, mode, **options) as made:
            await scenario(made)

    asyncio.run(main())


async def connect(made: Fleet, count: int) -> list[int]:
    """Ids of so many new channels, in the order of the list."""
    for _ in range(count):
        assert await (await made.connect()).echo(b"x") == b"x"
    rows, _ = await made.steering.list_channels(page_size=1000)
    await until(lambda: made.acceptor.listeners["a"].open == len(rows))  # the acceptor's thread counts what it has handed over already
    return [row["id"] for row in rows]


def test_every_page_is_full_and_together_they_are_all_channels_once() -> None:
    async def scenario(made: Fleet) -> None:
        ids = await connect(made, 7)
        for size in (1, 2, 3, 4, 7, 8):
            seen: list[int] = []
            token = ""
            while True:
                rows, token = await made.steering.list_channels("a", size, token)
                seen += [row["id"] for row in rows]
                if not token:
                    break
                assert len(rows) == size
            assert seen == ids

    run(scenario)


def test_a_page_is_put_together_of_short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of a processor is so long that making or reading it would hold up the other connections."""
    monkeypatch.setattr("control.steering.steering.LINK_ROWS", 2)

    async def scenario(made: Fleet) -> None:
        ids = await connect(made, 5)
        rows, token = await made.steering.list_channels(page_size=5)
        assert ([row["id"] for row in rows], token) == (ids, "")
        rows, token = await made.steering.list_channels(page_size=3)
        assert [row["id"] for row in rows] == ids[:3]
        rows, token = await made.steering.list_channels(page_size=3, page_token=token)
        assert ([row["id"] for row in rows], token) == (ids[3:], "")

    run(scenario, processors=1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(("none", 0, ""), NotFoundError), ((None, -1, ""), InvalidArgumentError), ((None, 1, "x"), InvalidArgumentError)],
)
def test_a_list_of_nonsense_is_refused(arguments: tuple[Any, ...], error: type[ControlError]) -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(error):
            await made.steering.list_channels(*arguments)

    run(scenario, 1)


def test_a_channel_is_described_by_its_id_alone() -> None:
    async def scenario(made: Fleet) -> None:
        for identifier in await connect(made, 2):
            assert (await made.steering.describe_channel(identifier))["id"] == identifier
        for unknown in (identifier + 99, 63 << 57):
            with pytest.raises(NotFoundError):
                await made.steering.describe_channel(unknown)

    run(scenario)


def test_channels_of_several_processors_are_muted_and_closed_in_one_call() -> None:
    async def scenario(made: Fleet) -> None:
        ids = await connect(made, 4)
        gone = (63 << 57) + 5
        outcome = await made.steering.mute_channels([*ids, gone], reason="test")
        assert (sorted(outcome.affected), outcome.missing) == (ids, (gone,))
        assert set((await made.steering.unmute_channels(listener="a")).affected) == set(ids)
        with pytest.raises(NotFoundError):
            await made.steering.mute_channels([gone])
        with pytest.raises(NotFoundError):
            await made.steering.mute_channels(listener="none")
        for nonsense in ({}, {"channels": ids, "listener": "a"}):
            with pytest.raises(InvalidArgumentError):
                await made.steering.mute_channels(**nonsense)
        assert sorted((await made.steering.close_channels(ids)).affected) == ids
        await until(lambda: len(made.events) == 4)
        assert {row["cause"] for row in made.events} == {"admin"}

    run(scenario)


def test_a_limit_changes_everywhere_and_is_what_new_processors_get() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        assert (await made.steering.set_limit("a", 7)).max_receive_size == 7
        assert [item.max_receive_size for item in await made.steering.get_limits()] == [7]
        assert made.steering.config.listeners[0].max_receive_size == 7
        rows, _ = await made.steering.list_channels()
        assert {row["facts"]["max_receive_size"]["a"] for row in rows} == {7}
        assert made.meters.value("config.changes", "") == 1

    run(scenario)


def test_limits_out_of_range_are_refused_before_anybody_is_asked() -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(NotFoundError):
            await made.steering.set_limit("none", 7)
        with pytest.raises(NotFoundError):
            await made.steering.get_limits("none")
        for size in (0, 2**31):
            with pytest.raises(InvalidArgumentError):
                await made.steering.set_limit("a", size)
        with pytest.raises(FailedPreconditionError) as caught:
            await made.steering.set_limit("a", 6 * MIB + 1)
        assert caught.value.reason == "POOL_BELOW_MAX_RECEIVE_SIZE"
        assert (await made.steering.set_limit("a", 6 * MIB)).max_receive_size == 6 * MIB
        assert made.meters.value("config.changes", "invalid") == 2
        assert made.meters.value("config.changes", "refused") == 2

    run(scenario)


def test_a_refused_limit_is_in_force_nowhere() -> None:
    async def scenario(made: Fleet) -> None:
        with pytest.raises(AbortedError):
            await made.steering.set_limit("a", 7)
        assert (await made.steering.get_limits("a"))[0].max_receive_size == MIB
        assert made.meters.value("config.changes", "refused") == 1

    run(scenario, 1, "refuse")


def test_the_pool_is_resized_and_divided() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        pool = await made.steering.set_pool_size(5 * MIB + 1)
        assert [item.share for item in pool.shares] == [5 * MIB // 2 + 1, 5 * MIB // 2]
        assert (pool.size, pool.processors) == (5 * MIB + 1, 2)
        rows, _ = await made.steering.list_channels()
        assert [row["facts"]["share"] for row in rows] == [item.share for item in pool.shares]
        with pytest.raises(FailedPreconditionError):
            await made.steering.set_pool_size(2 * MIB - 1)
        with pytest.raises(InvalidArgumentError):
            await made.steering.set_pool_size(0)

    run(scenario)


def test_processors_are_added_and_removed_and_the_pool_follows() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        pool = await made.steering.set_processors(3)
        assert [item.share for item in pool.shares] == [4 * MIB] * 3
        assert [item.state for item in await made.steering.status()] == ["running"] * 3
        assert made.steering.config.processors == 3
        await connect(made, 3)
        pool = await made.steering.set_processors(1)
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert [item.state for item in await made.steering.status()] == ["running"]
        assert {row["cause"] for row in made.events} == {"drained"}
        rows, _ = await made.steering.list_channels()
        assert {row["facts"]["share"] for row in rows} == {12 * MIB}
        for nonsense in (0, 65):
            with pytest.raises(InvalidArgumentError):
                await made.steering.set_processors(nonsense)
        with pytest.raises(FailedPreconditionError):
            await made.steering.set_processors(13)

    run(scenario)


def test_processors_that_cannot_start_leave_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        monkeypatch.setenv("FAKE_PROCESSOR", "fail")
        with pytest.raises(UnavailableError, match="no processor was added"):
            await made.steering.set_processors(2)
        pool = await made.steering.get_pool()
        assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
        assert made.steering.config.processors == 1

    run(scenario, 1)


def test_drain_ends_what_is_open_and_the_proxy_is_no_longer_ready() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 3)
        assert made.steering.health().ready
        result = await made.steering.drain(1000)
        assert (result.closed, result.open) == (3, 0)
        health = made.steering.health()
        assert (health.started, health.alive, health.ready) == (True, True, False)
        (listener,) = await made.steering.list_listeners()
        assert not listener.accepting
        again = await made.steering.drain(1000)
        assert (again.closed, again.open) == (0, 0)
        with pytest.raises(FailedPreconditionError):
            await made.steering.set_processors(3)

    run(scenario)


def test_what_there_is_can_be_seen() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        (listener,) = await made.steering.list_listeners()
        assert (listener.name, listener.connections, listener.accepting, listener.tls) == ("a", 2, True, False)
        assert listener.address == made.acceptor.listeners["a"].address
        (upstream,) = await made.steering.list_upstreams()
        assert (upstream.name, upstream.addresses, upstream.error, upstream.down) == ("u", ("127.0.0.1:1",), "", ())
        assert made.steering.build.modules.keys() == {"fake"}
        assert not made.steering.build.compiled
        assert [slot for slot, _ in made.steering.cells] == [0, 1]
        assert ("framegate.config.revision", ()) in made.steering.measurements()
        assert made.steering.started_ns > 0
        made.steering.reserve_audit()
        made.steering.audit({"who": "root"})
        assert made.log.events("audit")[0]["who"] == "root"
        made.log.room = False
        with pytest.raises(UnavailableError, match="cannot be audited"):
            made.steering.reserve_audit()

    run(scenario)


def test_new_addresses_reach_every_processor() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        fresh = [["127.0.0.1", 2, "127.0.0.9", 9], ["127.0.0.1", 2, "127.0.0.8", 9]]
        made.steering.resolver.current = {"u": Resolution(fresh)}
        await made.steering.set_endpoints()
        rows, _ = await made.steering.list_channels()
        assert [row["facts"]["endpoints"] for row in rows] == [{"u": fresh}] * 2
        assert made.facts.endpoints == {"u": fresh}
        revision = made.facts.revision
        made.steering.resolver.current = {"u": Resolution(fresh[::-1])}
        await made.steering.set_endpoints()
        assert (made.facts.revision, len(made.log.events("endpoints_changed"))) == (revision, 1)

    run(scenario)


def test_addresses_that_a_processor_refused_are_offered_again() -> None:
    async def scenario(made: Fleet) -> None:
        made.steering.resolver.current = {"u": Resolution([["127.0.0.1", 2, "127.0.0.9", 9]])}
        for count in (1, 2):
            await made.steering.set_endpoints()
            assert len(made.log.events("endpoints_refused")) == count
        assert made.facts.endpoints == {"u": [["127.0.0.1", 2, "127.0.0.1", 1]]}

    run(scenario, 1, "refuse")


def test_endpoints_that_processors_leave_out_are_listed_with_how_many_do() -> None:
    async def scenario(made: Fleet) -> None:
        (upstream,) = await made.steering.list_upstreams()
        assert upstream.down == (DownEndpoint(address="127.0.0.1:1", reason="refused", detail="says 0", processors=2),)

    run(scenario, 2, "down")


def test_a_subscriber_that_fails_harms_nobody() -> None:
    async def scenario(made: Fleet) -> None:
        def fail(row: dict[str, Any]) -> None:
            raise ValueError("no")

        cancel = made.steering.subscribe(fail)
        seen: list[dict[str, Any]] = []
        made.steering.subscribe(seen.append)
        await (await made.connect()).close()
        await until(lambda: seen)
        assert len(made.log.events("subscriber_failed")) == 1
        cancel()
        cancel()
        await (await made.connect()).close()
        await until(lambda: len(seen) == 2)
        assert len(made.log.events("subscriber_failed")) == 1

    run(scenario, 1)


def test_the_balancer_reads_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.steering.pool.BALANCE_INTERVAL_S", 0.01)
    looks = iter([{0}, set()])
    monkeypatch.setattr("control.steering.balance.Need.look", lambda self, now: next(looks, set()))

    async def scenario(made: Fleet) -> None:
        await until(lambda: made.log.events("pool_moved"))
        assert made.log.events("pool_moved")[0]["needy"] == [0]

    run(scenario)


@pytest.mark.parametrize(("verb", "reason"), [("mute", "MUTE_PENDING"), ("unmute", "PROCESSOR_SILENT"), ("close", "PROCESSOR_SILENT")])
def test_what_one_processor_does_not_answer_is_said_and_what_the_other_did_is_counted(
    verb: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.steering.steering.REQUEST_MS", 500)

    async def scenario(made: Fleet) -> None:
        await connect(made, 3)
        act = {"mute": made.steering.mute_channels, "unmute": made.steering.unmute_channels, "close": made.steering.close_channels}[verb]
        with pytest.raises(UnavailableError, match=f"{verb} is in force for 2 channels; .*processor 1 ") as caught:
            await act(listener="a", reason="test")
        assert (caught.value.reason, caught.value.facts) == (reason, {"processors": "1", "affected_count": "2", "missing_count": "0"})

    run(scenario, 2, "deaf@1")


def test_of_a_processor_that_stands_nobody_says_that_a_mute_is_set_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.steering.steering.REQUEST_MS", 500)

    async def scenario(made: Fleet) -> None:
        await connect(made, 2)
        standing = made.supervisor.running[1].pid
        os.kill(standing, signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="of processor 1 it is not known") as caught:
            await made.steering.mute_channels(listener="a", reason="test")
        os.kill(standing, signal.SIGCONT)
        assert caught.value.reason == "PROCESSOR_SILENT"

    run(scenario, 2)


def test_a_drain_waits_for_the_end_of_a_processor_that_dies_meanwhile() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 4)
        draining = asyncio.ensure_future(made.steering.drain(5000))
        await until(lambda: made.steering.pool.draining)
        made.supervisor.running[1].kill("died")
        assert (await draining).open == 0

    run(scenario, 2, "deaf@1")


@pytest.mark.parametrize("verb", ["mute", "unmute", "close"])
def test_what_a_processor_could_not_do_is_said(verb: str) -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 4)
        with pytest.raises(UnavailableError, match=f"{verb} is in force for 3 channels, and not for 1: 1-") as caught:
            await getattr(made.steering, f"{verb}_channels")(listener="a", reason="test")
        assert (caught.value.reason, caught.value.facts["undone_count"]) == ("PARTLY_DONE", "1")

    run(scenario, 2, "partly@1")


def test_channels_that_went_with_their_processor_are_missing() -> None:
    async def scenario(made: Fleet) -> None:
        ids = await connect(made, 2)
        muting = asyncio.ensure_future(made.steering.mute_channels(ids, reason="test"))
        await until(lambda: made.steering._transactions._running)
        made.supervisor.running[1].kill("died")
        outcome = await muting
        assert (outcome.affected, outcome.missing) == ((ids[0],), (ids[1],))

    run(scenario, 2, "deaf@1")


def test_a_call_on_channels_that_is_cancelled_anywhere_reaches_all_or_none() -> None:
    async def main() -> None:
        async with fleet(2) as made:
            ids = await connect(made, 4)
            muted: set[int] = set()

            async def check() -> None:
                await until(lambda: not made.steering._transactions._running)
                rows, _ = await made.steering.list_channels()
                muted.add(sum(row["muted"] == ["admin"] for row in rows))
                await made.steering.unmute_channels(listener="a")

            assert await at_every_turn(lambda: made.steering.mute_channels(ids, reason="test"), check) >= 2
            assert muted == {0, 4}
            assert {row["result"] for row in made.log.events("change_settled")} == {"made"}

    run_cancelling(main())


def test_a_drain_that_is_cancelled_goes_on() -> None:
    async def main() -> None:
        async with fleet(2) as made:
            await connect(made, 3)
            ends: list[int] = []

            async def check() -> None:
                await until(lambda: not made.steering._transactions._running)
                ends.append(sum(item.connections for item in await made.steering.list_listeners()))

            assert await at_every_turn(lambda: made.steering.drain(1000), check) >= 2
            assert ends[:2] == [3, 0]
            assert made.log.events("change_settled")[0]["change"] == "drain"
            assert [item.state for item in await made.steering.status()] == ["draining", "draining"]

    run_cancelling(main())


def test_a_drain_that_a_processor_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.fleet.supervisor.PATIENCE_S", 0.5)

    async def scenario(made: Fleet) -> None:
        with pytest.raises(UnavailableError, match="processor 1 has not said so") as caught:
            await made.steering.drain(1000)
        assert caught.value.facts == {"processors": "1"}

    run(scenario, 2, "deaf@1")


def test_liveness_is_gone_when_a_job_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(made: Fleet) -> None:
        job = made.guard.job("heartbeats", 0.0)
        await until(lambda: job.standing)
        health = made.steering.health()
        assert (health.started, health.alive, health.ready) == (True, False, True)
        job.end()
        assert made.steering.health().alive

    run(scenario, 1)


def test_who_holds_most_is_put_together_of_all_processors() -> None:
    async def scenario(made: Fleet) -> None:
        await connect(made, 7)
        held = await made.steering.top_holders(5)
        assert [holder.bytes for holder in held] == [4, 3, 3, 2, 2]
        assert [holder.channel >> 57 for holder in held] == [0, 0, 1, 0, 1]
        assert {(holder.listener, holder.side, holder.kind, holder.muted, holder.muted_ns, holder.last_active_ns) for holder in held} == {
            ("a", "downstream", "begun", ("memory",), 5, 3)
        }
        assert len(await made.steering.top_holders(100)) == 7

    run(scenario, mode="holding")


def test_a_processor_that_dies_while_it_is_asked_holds_nothing() -> None:
    async def scenario(made: Fleet) -> None:
        assert await made.steering.top_holders(5) == []

    run(scenario, mode="leaving@1")


def test_a_processor_that_does_not_say_who_holds_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.steering.steering.REQUEST_MS", 50)

    async def scenario(made: Fleet) -> None:
        os.kill(made.supervisor.running[1].pid, signal.SIGSTOP)
        try:
            with pytest.raises(UnavailableError) as caught:
                await made.steering.top_holders(5)
        finally:
            os.kill(made.supervisor.running[1].pid, signal.SIGCONT)
        assert caught.value.reason == "PROCESSOR_SILENT"

    run(scenario)
