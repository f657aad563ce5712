"""framegate.control.steering.pool: the size, the shares and the number of processors, over fake processors."""

import asyncio
import dataclasses
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.control.errors import FailedPreconditionError, UnavailableError
from framegate.control.steering.pool import CALM_SAMPLES, LEAST_MOVE, Need, Sample, equal_shares, moved_shares
from framegate.proxy.config.model import CUT_ABOVE, MIB, Forwarding
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, facts, open_channels, run, until
from tests.fakes.scenario import run_by


def shares(made: Fleet) -> list[int]:
    """What each processor holds."""
    return [slot.cells.reader.cell("framegate.memory_pool.limit", "frames") for _, slot in sorted(made.supervisor.slots.items())]


async def check_whole(made: Fleet) -> None:
    """After whatever ended: nothing is under way, what is said is true everywhere, and the next change can be made."""
    pool = made.steering.pool
    await until(lambda: not pool._transactions._running)
    await until(lambda: not pool._removals)
    count = made.desired.config.processors
    assert [item.state for item in made.supervisor.status()] == ["running"] * count
    assert list(made.desired.shares) == [item.slot for item in made.supervisor.status()]
    assert list(made.desired.shares.values()) == list(equal_shares(made.desired.config.memory_pool.size, count).values())
    assert shares(made) == list(made.desired.shares.values())
    assert [item.share for item in pool.status().shares] == shares(made)
    size = made.desired.config.memory_pool.size
    await pool.set_size(size + MIB)
    await pool.set_size(size)
    assert shares(made) == list(equal_shares(size, count).values())


def test_shares_are_equal_and_sum_to_the_size() -> None:
    assert equal_shares(10, 3) == {0: 4, 1: 3, 2: 3}
    assert equal_shares(8, 1) == {0: 8}


@run_by(run)
async def test_a_new_size_is_divided_and_keeps_what_listeners_are_guaranteed(made: Fleet) -> None:
    await open_channels(made, 2)
    config = made.desired.config
    made.desired.config = dataclasses.replace(config, memory_pool=dataclasses.replace(config.memory_pool, shares={"a": 50}))
    before, pool = await made.steering.pool.set_size(5 * MIB + 1)
    assert (before.size, before.processors) == (12 * MIB, 2)
    assert [item.share for item in pool.shares] == [5 * MIB // 2 + 1, 5 * MIB // 2]
    assert (pool.size, pool.processors) == (5 * MIB + 1, 2)
    assert [each["share"] for each in await facts(made)] == [item.share for item in pool.shares]
    assert (made.desired.config.memory_pool.size, made.desired.config.memory_pool.shares) == (5 * MIB + 1, {"a": 50})


@run_by(run, forwarding=Forwarding(requests="cut_through"))
async def test_the_largest_frame_that_passes_whole_is_the_least_share(made: Fleet) -> None:
    await made.steering.limits.change("a", {"max_receive_size": 100 * MIB})
    await made.steering.pool.set_size(2 * (CUT_ABOVE - 4))
    with pytest.raises(FailedPreconditionError):
        await made.steering.pool.set_size(2 * (CUT_ABOVE - 4) - 1)


@pytest.mark.slow  # each turn starts a process
@pytest.mark.parametrize(("before", "after", "stride", "least"), [(1, 2, 2, 4), (2, 1, 3, 3)])
def test_another_number_of_processors_that_is_cancelled_anywhere_is_in_force_or_nothing_has_changed(
    before: int, after: int, stride: int, least: int
) -> None:
    async def scenario(made: Fleet) -> None:
        ends: set[int] = set()

        async def check() -> None:
            await check_whole(made)
            ends.add(made.desired.config.processors)
            if made.desired.config.processors == after:
                await made.steering.pool.set_processors(before)

        assert await at_every_turn(lambda: made.steering.pool.set_processors(after), check, stride=stride) >= least
        assert ends == {1, 2}
        if before == 2:
            assert "made" in {row["result"] for row in made.log.events("change_settled")}

    run(scenario, before, timeout=60, runner=run_cancelling)


@run_by(run, 2, runner=run_cancelling)
async def test_a_size_that_is_cancelled_anywhere_is_in_force_everywhere_or_nowhere(made: Fleet) -> None:
    async def check() -> None:
        await check_whole(made)
        await made.steering.pool.set_size(12 * MIB)

    assert await at_every_turn(lambda: made.steering.pool.set_size(8 * MIB), check) >= 3


@pytest.mark.slow  # it stops a process and starts one
@run_by(run, mode="busy")
async def test_changes_reach_processors_that_drain_and_do_not_wait_for_them(made: Fleet) -> None:
    """Nor does another number of processors: new ones take other slots."""

    clients = [await made.connect() for _ in range(4)]
    assert [await client.echo(b"x") for client in clients] == [b"x"] * 4
    shrinking = asyncio.ensure_future(made.steering.pool.set_processors(1))
    await until(lambda: made.supervisor.status()[1].state == "draining")
    async with asyncio.timeout(2):
        await made.steering.pool.set_size(8 * MIB)
        await made.steering.limits.change("a", {"max_receive_size": 7})
    assert (shares(made), made.steering.pool.status().processors) == ([4 * MIB, 4 * MIB], 1)
    assert [slot.cells.reader.cell("framegate.frame.size.limit", "a") for slot in made.supervisor.slots.values()] == [7, 7]
    assert made.steering.pool.pending == ("1 processor of 2 drain before they are removed",)
    await made.steering.pool.set_processors(2)
    assert (shares(made), not shrinking.done()) == ([8 * MIB // 3 + 2, 8 * MIB // 3, 8 * MIB // 3], True)
    for client in clients:
        await client.close()
    await shrinking
    assert (made.desired.shares, made.steering.pool.pending) == ({0: 4 * MIB, 2: 4 * MIB}, ())
    await check_whole(made)


@run_by(run, 1)
async def test_growing_that_fails_leaves_all_as_it_was(made: Fleet) -> None:
    made.supervisor._spawn_options = made.supervisor._spawn_options._replace(command=("/nonexistent/processor",))
    with pytest.raises(UnavailableError, match=r"no processor was added: processor 1 could not be started: .*No such file") as caught:
        await made.steering.pool.set_processors(2)
    assert caught.value.reason == "PROCESSOR_START_FAILED"
    await check_whole(made)


@run_by(run)
async def test_shares_move_to_the_needy_and_back(made: Fleet) -> None:
    pool = made.steering.pool
    await pool._move_shares({0}, {0: 6 * MIB, 1: 0}, calm=False)
    assert shares(made) == [8 * MIB + MIB // 2, 3 * MIB + MIB // 2]
    await pool._move_shares(set(), {0: 0, 1: 0}, calm=True)
    assert shares(made) == [6 * MIB, 6 * MIB]
    assert len(made.log.events("pool_moved")) == 2


@patch("framegate.control.steering.pool.BALANCE_INTERVAL_S", 0.01)
@patch("framegate.control.steering.pool.CALM_SAMPLES", 1)
@run_by(run, 1)
async def test_shares_that_are_out_of_step_with_the_size_are_set_right_for_one_processor_too(made: Fleet) -> None:
    made.desired.shares = {0: 7 * MIB}
    await until(lambda: made.desired.shares == {0: 12 * MIB})


@patch("framegate.control.steering.pool.BALANCE_INTERVAL_S", 0.01)
@patch("framegate.control.task_monitor._PAUSE_S", 0.0)
@run_by(run, 1)
async def test_a_balancer_that_fails_goes_on(made: Fleet) -> None:
    kept, made.desired.shares = made.desired.shares, {}
    await until(lambda: made.meters.value("task.failures", "shares") >= 2)
    made.desired.shares = kept
    assert made.steering.state.health().alive


@run_by(run)
async def test_processors_are_added_and_removed_and_the_pool_follows(made: Fleet) -> None:
    await open_channels(made, 2)
    _, pool = await made.steering.pool.set_processors(3)
    assert [item.share for item in pool.shares] == [4 * MIB] * 3
    assert [item.state for item in made.steering.state.processor_statuses()] == ["running"] * 3
    assert made.steering.state.config.processors == 3
    await open_channels(made, 3)
    _, pool = await made.steering.pool.set_processors(1)
    assert [(item.slot, item.share) for item in pool.shares] == [(0, 12 * MIB)]
    assert [item.state for item in made.steering.state.processor_statuses()] == ["running"]
    assert {row["cause"] for row in made.events} == {"drained"}
    assert {each["share"] for each in await facts(made)} == {12 * MIB}


@patch("framegate.control.steering.pool.BALANCE_INTERVAL_S", 0.01)
@run_by(run)
async def test_the_balancer_reads_the_cells(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([{0}, set()])
    monkeypatch.setattr("framegate.control.steering.pool.Need.update", lambda self, now: next(samples, set()))
    await until(lambda: made.log.events("pool_moved"))
    assert made.log.events("pool_moved")[0]["needy"] == [0]


# Which shares move.


def test_an_idle_share_gives_half_of_what_it_can_spare_if_another_needs_it() -> None:
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 0}, {0}, 2 * MIB) == {0: 11 * MIB, 1: 5 * MIB}
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 0, 1: 0}, set(), MIB) is None
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 8 * MIB}, {0, 1}, MIB) is None
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 4 * MIB}, {0}, MIB) is None
    assert moved_shares({0: MIB, 1: MIB}, {0: MIB, 1: 0}, {0}, MIB) is None
    assert moved_shares({0: MIB, 1: MIB + LEAST_MOVE}, {0: MIB, 1: 0}, {0}, MIB) is None


@given(shares=st.dictionaries(st.integers(0, 7), st.integers(MIB, 64 * MIB), min_size=1), seed=st.randoms(use_true_random=False))
def test_the_sum_stays_and_no_share_falls_below_the_largest_frame_or_its_usage(shares: dict[int, int], seed: object) -> None:
    usage = {slot: seed.randint(0, share) for slot, share in shares.items()}  # type: ignore[attr-defined]
    needy = {slot for slot in shares if seed.random() < 0.4}  # type: ignore[attr-defined]
    moved = moved_shares(shares, usage, needy, MIB)
    if moved is not None:
        assert sum(moved.values()) == sum(shares.values())
        assert all(share >= MIB and share >= usage[slot] for slot, share in moved.items())
        assert all(moved[slot] >= shares[slot] for slot in needy)


def test_a_slot_is_needy_if_reads_waited_in_two_intervals_in_a_row() -> None:
    need = Need()
    assert need.update({0: Sample(0, 5), 1: Sample(0, 0)}) == set()
    assert need.update({0: Sample(0, 6), 1: Sample(0, 0)}) == set()
    assert need.update({0: Sample(0, 9), 1: Sample(0, 1)}) == {0}
    assert need.update({0: Sample(0, 9), 1: Sample(0, 2)}) == {1}
    assert need.update({0: Sample(0, 9), 1: Sample(0, 2)}) == set()
    assert not need.calm
    for _ in range(CALM_SAMPLES):
        need.update({0: Sample(0, 9), 1: Sample(0, 2)})
    assert need.calm
