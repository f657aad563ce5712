"""framegate.control.steering.channels: the channels of all processors, listed, described, muted, closed; and who holds memory."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from unittest.mock import patch

import pytest

from framegate.control.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from framegate.control.fleet import two_phases
from framegate.control.status import ChannelVerb
from framegate.control.steering.channels import Terms
from framegate.control.steering.filter import Filter, Order
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, facts, open_channels, run, until
from tests.fakes.scenario import run_by

OF_A = Filter("listener=a")
TERMS = Terms(reason="test")


@pytest.mark.parametrize("link_rows", [2, 1000])
@run_by(run)
async def test_every_page_is_full_and_together_they_are_all_channels_once(made: Fleet, *, link_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a page needs several answers of a processor: none is so long that making or reading it holds up the other connections."""
    monkeypatch.setattr("framegate.control.steering.channels.LINK_ROWS", link_rows)
    ids = await open_channels(made, 7)
    for size in (1, 2, 3, 4, 5, 7, 8):
        seen: list[int] = []
        token = ""
        while True:
            rows, token = await made.steering.channels.page(OF_A, size, token)
            seen += [look.row["id"] for look in rows]
            if not token:
                break
            assert len(rows) == size
        assert seen == ids


@run_by(run)
async def test_a_channel_is_described_by_its_id_alone(made: Fleet) -> None:
    for identifier in await open_channels(made, 2):
        assert (await made.steering.channels.describe(identifier))["id"] == identifier
    for unknown in (identifier + 99, 63 << 57):
        with pytest.raises(NotFoundError):
            await made.steering.channels.describe(unknown)


@pytest.mark.parametrize(("verb", "reason"), [("mute", "MUTE_PENDING"), ("unmute", "PROCESSOR_SILENT"), ("close", "PROCESSOR_SILENT")])
@patch("framegate.control.steering.channels.REQUEST_MS", 500)
@run_by(run, 2, "deaf@1")
async def test_an_error_names_the_silent_processor_and_counts_what_the_other_did(made: Fleet, *, verb: ChannelVerb, reason: str) -> None:
    await open_channels(made, 3)
    with pytest.raises(UnavailableError, match=f"{verb} is in force for 2 channels; .*processor 1 ") as caught:
        await made.steering.channels.act(verb, OF_A, TERMS)
    assert (caught.value.reason, caught.value.metadata) == (reason, {"processors": "1", "affected_count": "2", "missing_count": "0"})
    assert len(caught.value.changed.after.affected) == 2, "for the audit row"


@patch("framegate.control.steering.channels.REQUEST_MS", 500)
@run_by(run, 2)
async def test_a_processor_whose_heartbeat_stands_is_an_error_of_a_mute_and_of_the_largest_holders(made: Fleet) -> None:
    ids = await open_channels(made, 2)
    standing = made.supervisor.running[1].pid
    os.kill(standing, signal.SIGSTOP)
    for call, text in (
        (made.steering.channels.act("mute", ids, TERMS), "of processor 1 it is not known"),
        (made.steering.channels.act("mute", OF_A, TERMS), "processor"),
        (made.steering.channels.top_holders(5), "processor"),
    ):
        with pytest.raises(UnavailableError, match=text) as caught:
            await call
        assert caught.value.reason == "PROCESSOR_SILENT"
    os.kill(standing, signal.SIGCONT)


@pytest.mark.parametrize("verb", ["mute", "unmute", "close"])
@run_by(run, 2, "partly@1")
async def test_channels_that_a_processor_could_not_change_are_counted_in_the_error(made: Fleet, *, verb: str) -> None:
    await open_channels(made, 4)
    with pytest.raises(UnavailableError, match=f"{verb} is in force for 3 channels, and not for 1: 1-") as caught:
        await made.steering.channels.act(verb, OF_A, TERMS)
    assert (caught.value.reason, caught.value.metadata["undone_count"]) == ("PARTLY_DONE", "1")


@run_by(run, 2, "deaf@1")
async def test_channels_that_went_with_their_processor_are_missing(made: Fleet) -> None:
    ids = await open_channels(made, 2)
    muting = asyncio.ensure_future(made.steering.channels.act("mute", ids, TERMS))
    await until(lambda: made.steering.transactions._running)
    made.supervisor.running[1].kill("died")
    outcome = await muting
    assert (outcome.affected, outcome.missing) == ((ids[0],), (ids[1],))


@run_by(run, 2, runner=run_cancelling)
async def test_a_call_on_channels_that_is_cancelled_anywhere_reaches_all_or_none(made: Fleet) -> None:
    ids = await open_channels(made, 4)
    muted: set[int] = set()

    async def check() -> None:
        await until(lambda: not made.steering.transactions._running)
        rows, _ = await made.steering.channels.page()
        muted.add(sum(look.row["muted"] == ["admin"] for look in rows))
        await made.steering.channels.act("unmute", OF_A)

    assert await at_every_turn(lambda: made.steering.channels.act("mute", ids, TERMS), check) >= 2
    assert muted == {0, 4}
    assert {row["result"] for row in made.log.events("change_settled")} == {"made"}


@run_by(run, mode="holding")
async def test_the_largest_holders_are_those_of_all_processors(made: Fleet) -> None:
    await open_channels(made, 7)
    held = await made.steering.channels.top_holders(5)
    assert [holder.bytes for holder in held] == [4, 3, 3, 2, 2]
    assert [holder.channel >> 57 for holder in held] == [0, 0, 1, 0, 1]
    assert {(holder.listener, holder.side, holder.kind, holder.muted, holder.muted_ns, holder.last_active_ns) for holder in held} == {
        ("a", "downstream", "begun", ("memory",), 5, 3)
    }
    assert len(await made.steering.channels.top_holders(100)) == 7


@run_by(run, mode="leaving@1")
async def test_a_processor_that_dies_while_it_is_asked_holds_nothing(made: Fleet) -> None:
    assert await made.steering.channels.top_holders(5) == []


# Filters, bounds, and actions that are kept.


async def pages(made: Fleet, chosen: Filter, size: int, between: Callable[[], Awaitable[object]]) -> list[list[int]]:
    found: list[list[int]] = []
    token = ""
    while True:
        looks, token = await made.steering.channels.page(chosen, size, token)
        found.append([look.row["id"] for look in looks])
        if not token:
            return found
        await between()


@pytest.mark.parametrize("link_rows", [2, 100])
@run_by(run, others=("b",))
async def test_pages_of_a_filter_have_each_match_once_also_while_others_close(
    made: Fleet, *, link_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framegate.control.steering.channels.LINK_ROWS", link_rows)
    clients = [await made.connect(name) for name in "abbabaab" for _ in range(2)]
    for client in clients:
        await client.echo(b"x")
    looks, _ = await made.steering.channels.page(page_size=100)
    matching = [look.row["id"] for look in looks if look.row["listener"] == "a"]
    for size in (1, 3, 8, 9):
        found = await pages(made, OF_A, size, lambda: asyncio.sleep(0))
        assert [number for page in found for number in page] == matching
    assert len(matching) == 8
    closing = iter(matching)

    async def close_one() -> None:
        await made.steering.channels.act("close", [next(closing)], TERMS)

    found = await pages(made, Filter("listener=[a] age>=0"), 2, close_one)
    seen = [number for page in found for number in page]
    assert seen == sorted(set(seen), key=matching.index)
    assert set(matching) - set(seen) <= set(matching[: len(found)]), "only what was closed is missing"
    ordered, count = await made.steering.channels.top(Filter("listener=a"), Order("age desc"), 3, 0)
    ages = [look.row["opened_ns"] for look in ordered]
    assert (len(ordered), ages) == (min(count, 3), sorted(ages))


@run_by(run)
async def test_more_channels_than_allowed_are_not_changed_and_a_dry_run_changes_nothing(made: Fleet) -> None:
    ids = await open_channels(made, 3)
    channels = made.steering.channels
    for selected in (ids, OF_A):
        with pytest.raises(FailedPreconditionError, match=r"3 channels would be affected, and max_affected is 2: nothing is changed") as caught:
            await channels.act("mute", selected, Terms(reason="x", max_affected=2))
        assert (caught.value.reason, caught.value.metadata) == ("TOO_MANY_AFFECTED", {"count": "3", "max_affected": "2"})
        outcome = await channels.act("mute", selected, Terms(reason="x", max_affected=3, validate_only=True, ttl_ms=1000))
        assert (sorted(outcome.affected), outcome.missing, outcome.action) == (ids, (), None)
    assert (await channels.act("mute", [*ids, 5], Terms(validate_only=True))).missing == (5,)
    assert {tuple(look.row["muted"]) for look in (await channels.page())[0]} == {()}
    for most in (3, 4):
        assert len((await channels.act("mute", OF_A, Terms(max_affected=most))).affected) == 3


WRONG_TERMS = {
    ("mute", "age>1s", Terms(standing=True)): "age is not known of a new connection: with standing, use listener, address, principal, client_id",
    ("mute", None, Terms(standing=True)): "standing: needs a filter",
    ("close", "listener=a", Terms(ttl_ms=1000)): "ttl: needs standing: a channel is closed once",
    ("throttle", "listener=a", Terms(standing=True)): "standing: needs a rate",
    ("throttle", "listener=a", Terms(ttl_ms=1000)): "ttl: needs a rate",
}


@run_by(run)
async def test_terms_that_make_no_sense_are_refused(made: Fleet) -> None:
    for (verb, text, terms), said in WRONG_TERMS.items():
        with pytest.raises(InvalidArgumentError, match=said):
            await made.steering.channels.act(cast(ChannelVerb, verb), [1] if text is None else Filter(text), terms)
    with patch("framegate.control.steering.channels.MAX_ACTIONS", 1):
        await made.steering.channels.act("mute", OF_A, Terms(standing=True))
        with pytest.raises(FailedPreconditionError, match="1 actions are kept already"):
            await made.steering.channels.act("mute", OF_A, Terms(ttl_ms=1))
    with pytest.raises(NotFoundError):
        await made.steering.channels.lift(7)


async def standing_in(made: Fleet) -> list[list[int]]:
    return [[row["number"] for row in fact["standing"]] for fact in await facts(made)]


@run_by(run)
async def test_a_standing_action_is_in_each_processor_also_in_killed_and_added_ones_until_its_time_is_over(made: Fleet) -> None:
    channels, now_ns = made.steering.channels, [10**18]
    channels._now_ns = lambda: now_ns[0]
    ids = await open_channels(made, 2)
    outcome = await channels.act("mute", Filter("listener=a principal!=x"), Terms(reason="x", standing=True, ttl_ms=5_000))
    assert outcome.action is not None
    assert (sorted(outcome.affected), outcome.action.number, outcome.action.expires_ns) == (ids, 1, 10**18 + 5 * 10**9)
    await asyncio.gather(*(channels.act("close", Filter(f"address=10.0.0.{number}"), Terms(standing=True)) for number in range(3)))
    assert await standing_in(made) == [[1, 2, 3, 4]] * 2, "none is lost among changes at the same time"
    before = made.supervisor.running[1].pid
    made.supervisor.running[1].kill("died")
    await until(lambda: len(made.supervisor.running) == 2 and made.supervisor.running[1].pid != before)
    await made.steering.pool.set_processors(3)
    assert await standing_in(made) == [[1, 2, 3, 4]] * 3
    conditions = (await facts(made))[1]["standing"][0]["conditions"]
    assert conditions == [{"field": "listener", "value": "a", "negated": False}, {"field": "principal", "value": "x", "negated": True}]
    now_ns[0] += 5 * 10**9 - 1
    await channels.expire()
    assert [action.number for action in channels.actions] == [1, 2, 3, 4]
    now_ns[0] += 1
    await channels.expire()
    assert [action.number for action in channels.actions] == [2, 3, 4]
    assert await standing_in(made) == [[2, 3, 4]] * 3
    assert [look.row["muted"] for look in (await channels.page())[0]] == [[]], "the channel that is left is unmuted"
    await channels.lift(3)
    assert await standing_in(made) == [[2, 4]] * 3
    ended = [(row["action"], row["reason"]) for row in made.log.events("channel_action_ended")]
    assert ended == [(1, "expired"), (3, "deleted")]


@run_by(run)
async def test_a_mute_with_a_time_unmutes_only_what_nobody_muted_later(made: Fleet) -> None:
    channels, now_ns = made.steering.channels, [10**18]
    channels._now_ns = lambda: now_ns[0]
    ids = await open_channels(made, 4)
    await channels.act("mute", ids[:3], Terms(ttl_ms=1_000))
    await channels.act("mute", [ids[0]], Terms(reason="later"))
    await channels.act("mute", [ids[1]], Terms(ttl_ms=2_000))
    muted = []
    for passed_ns in (0, 10**9, 10**9):
        now_ns[0] += passed_ns
        await channels.expire()
        muted.append([look.row["id"] for look in (await channels.page())[0] if look.row["muted"]])
    assert [sorted(numbers) for numbers in muted] == [sorted(ids[:3]), sorted(ids[:2]), [ids[0]]]
    assert channels.actions == []


@run_by(run)
async def test_an_action_with_a_time_is_kept_as_long_as_it_is_in_force_for_an_open_channel(made: Fleet) -> None:
    channels, now_ns = made.steering.channels, [10**18]
    channels._now_ns = lambda: now_ns[0]
    ids = await open_channels(made, 3)

    def kept() -> list[int]:
        return [action.number for action in channels.actions]

    with patch("framegate.control.steering.channels.MAX_ACTIONS", 3):
        with pytest.raises(NotFoundError):
            await channels.act("mute", [ids[2] + 99], Terms(ttl_ms=60_000))
        assert kept() == [], "it is in force for no channel"
        await channels.act("mute", ids, Terms(ttl_ms=60_000))
        await channels.act("throttle", ids[2:], Terms(ttl_ms=60_000, request_rate=1))
        await channels.act("mute", OF_A, Terms(ttl_ms=60_000, standing=True))
        assert kept() == [3, 4], "a later mute of the same channels; a standing one stays whatever closes"
        await channels.act("mute", ids[:2], Terms(ttl_ms=60_000))
        with pytest.raises(FailedPreconditionError, match="3 actions are kept already"):
            await channels.act("mute", ids[2:], Terms(ttl_ms=60_000))
        await channels.act("close", ids[1:], TERMS)
        await until(lambda: made.acceptor.listeners["a"].open == 1)
        now_ns[0] += 10**9
        await channels.expire()
        assert kept() == [3, 4, 5], "perhaps the processor's row came before control has booked its connection"
        await channels.act("unmute", ids[:2], TERMS)
        assert kept() == [3, 4], "what was unmuted need not be undone"
        now_ns[0] += 1
        await channels.act("throttle", ids[:1], Terms(ttl_ms=60_000, request_rate=1))
        await channels.expire()
        assert kept() == [4, 6]
    made.supervisor.running[0].kill("died")
    made.supervisor.running[1].kill("died")
    await until(lambda: made.acceptor.listeners["a"].open == 0)
    now_ns[0] += 10**9 + 1
    await channels.expire()
    assert kept() == [4]
    ended = [(row["action"], row["reason"]) for row in made.log.events("channel_action_ended")]
    assert ended == [(2, "no_channel"), (5, "no_channel"), (3, "no_channel"), (6, "no_channel")]


@patch("framegate.control.steering.channels.REQUEST_MS", 500)
@run_by(run, 2, "deaf@1")
async def test_an_action_that_cannot_be_undone_everywhere_is_kept_and_tried_again(made: Fleet) -> None:
    channels, now_ns = made.steering.channels, [10**18]
    channels._now_ns = lambda: now_ns[0]
    await open_channels(made, 2)
    with pytest.raises(UnavailableError):
        await channels.act("mute", OF_A, Terms(standing=True, ttl_ms=1))
    assert await standing_in(made) == [[1], [1]], "it is in force for new connections"
    now_ns[0] += 10**6
    await channels.expire()
    assert ([action.number for action in channels.actions], await standing_in(made)) == ([1], [[], []])
    made.supervisor.running[1].kill("died")
    await until(lambda: len(made.supervisor.running) == 2)
    os.environ["FAKE_PROCESSOR"] = ""
    await until(lambda: len(made.supervisor.running) == 2)
    with patch("framegate.control.steering.channels.REQUEST_MS", 5_000):
        made.supervisor.running[1].kill("died")
        await until(lambda: len(made.supervisor.running) == 1)
        await channels.expire()
    assert channels.actions == []


@run_by(run)
async def test_a_filter_that_was_looked_up_affects_only_what_is_still_open(made: Fleet) -> None:
    ids = await open_channels(made, 4)
    channels, find = made.steering.channels, made.steering.channels._find

    async def close_two(selected: Sequence[int] | Filter) -> list[int]:
        found = await find(selected)
        if isinstance(selected, Filter):
            await channels.act("close", ids[:2], TERMS)
        return found

    with patch.object(channels, "_find", close_two):
        outcome = await channels.act("mute", OF_A, TERMS)
    assert (sorted(outcome.affected), outcome.missing) == (ids[2:], ()), "nobody named those that closed"


@pytest.mark.parametrize("scanned", [1, 2, 3, 7, 8])
@run_by(run)
async def test_a_page_ends_when_enough_was_looked_at_and_the_next_one_goes_on(made: Fleet, *, scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await open_channels(made, 7)
    await made.steering.channels.act("mute", [ids[-1]], TERMS)
    monkeypatch.setattr("framegate.control.steering.channels.LINK_ROWS", 1)
    monkeypatch.setattr("framegate.control.steering.channels.MAX_SCANNED", scanned)
    for text in ("waiting=admin", "waiting=admin bytes_rate=0"):
        with patch("framegate.control.steering.channels.WINDOW_MS", 1):
            found = await pages(made, Filter(text), 5, lambda: asyncio.sleep(0))
        assert [number for page in found for number in page] == [ids[-1]]
        assert len(found) == -(-7 // scanned)


@run_by(run, 1, "unconfirmed")
async def test_a_standing_action_that_is_decided_and_not_confirmed_is_done_and_its_error_says_what(
    made: Fleet, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await open_channels(made, 2)
    monkeypatch.setattr(two_phases, "PATIENCE_S", 0.05)
    with pytest.raises(UnavailableError):
        await made.steering.limits.change("a", {"max_receive_size": 13})
    with pytest.raises(UnavailableError) as caught:
        await made.steering.channels.act("mute", OF_A, Terms(standing=True))
    before, after = caught.value.changed
    assert (caught.value.reason, before, sorted(after.affected)) == ("CHANGE_PENDING", None, sorted(ids))
    assert after.action in made.steering.channels.actions
