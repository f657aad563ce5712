"""framegate.control.steering.channels: the channels of all processors, listed, described, muted, closed; and who holds memory."""

import asyncio
import os
import signal
from unittest.mock import patch

import pytest

from framegate.control.errors import NotFoundError, UnavailableError
from framegate.control.steering.channels import Verb
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, open_channels, run, until
from tests.fakes.scenario import run_by


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
            rows, token = await made.steering.channels.page("a", size, token)
            seen += [row["id"] for row in rows]
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
async def test_an_error_names_the_silent_processor_and_counts_what_the_other_did(made: Fleet, *, verb: Verb, reason: str) -> None:
    await open_channels(made, 3)
    with pytest.raises(UnavailableError, match=f"{verb} is in force for 2 channels; .*processor 1 ") as caught:
        await made.steering.channels.act(verb, listener="a", reason="test")
    assert (caught.value.reason, caught.value.metadata) == (reason, {"processors": "1", "affected_count": "2", "missing_count": "0"})


@patch("framegate.control.steering.channels.REQUEST_MS", 500)
@run_by(run, 2)
async def test_a_processor_whose_heartbeat_stands_is_an_error_of_a_mute_and_of_the_largest_holders(made: Fleet) -> None:
    await open_channels(made, 2)
    standing = made.supervisor.running[1].pid
    os.kill(standing, signal.SIGSTOP)
    for call, text in (
        (made.steering.channels.act("mute", listener="a", reason="test"), "of processor 1 it is not known"),
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
        await made.steering.channels.act(verb, listener="a", reason="test")
    assert (caught.value.reason, caught.value.metadata["undone_count"]) == ("PARTLY_DONE", "1")


@run_by(run, 2, "deaf@1")
async def test_channels_that_went_with_their_processor_are_missing(made: Fleet) -> None:
    ids = await open_channels(made, 2)
    muting = asyncio.ensure_future(made.steering.channels.act("mute", ids, reason="test"))
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
        muted.add(sum(row["muted"] == ["admin"] for row in rows))
        await made.steering.channels.act("unmute", listener="a")

    assert await at_every_turn(lambda: made.steering.channels.act("mute", ids, reason="test"), check) >= 2
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
