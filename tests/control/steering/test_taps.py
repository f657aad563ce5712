"""framegate.control.steering.taps: rules over fake processors, which refuse what real ones refuse; and rows about lost frames."""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from framegate.control.errors import AlreadyExistsError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from framegate.control.fleet import two_phases
from framegate.control.steering.taps import EACH_S, MAX_RULES, OVER_S, TapLosses
from framegate.control.steering.transactions import etag_of
from framegate.proxy.cells import CellReader
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.server.protocol import Request
from tests.fakes.cancelling import at_every_turn
from tests.fakes.cancelling import run as run_cancelling
from tests.fakes.fleet import Fleet, MemoryLog, facts, open_channels, until
from tests.fakes.fleet import run as run_fleet
from tests.fakes.scenario import run_by

FIRST = TapRule(name="first", directions=("request",))
SECOND = TapRule(name="second", capture="lengths")
TAP = TapConfig(directory="/nowhere", rules=(FIRST, SECOND))
HOUR_NS = 3600 * 10**9


def run(scenario: Callable[[Fleet], Awaitable[None]], processors: int = 2, mode: str = "", **options: Any) -> None:
    run_fleet(scenario, processors, mode, **{"tap": TAP, **options})


def held(made: Fleet) -> tuple[TapRule, ...]:
    assert made.desired.config.tap is not None
    return made.desired.config.tap.rules


async def names_in_force(made: Fleet) -> list[str]:
    """The names of the rules that control and every processor have, in order; fails when they do not have the same."""
    rows = [dataclasses.asdict(rule) for rule in held(made)]
    wire = [{key: list(value) if isinstance(value, tuple) else value for key, value in row.items()} for row in rows]
    assert [each["tap_rules"] for each in await facts(made)] == [wire] * len(made.supervisor.running)
    assert [status.rule for status in made.steering.taps.rules()] == list(held(made))
    return [rule.name for rule in held(made)]


@run_by(run)
async def test_rules_are_added_changed_moved_and_removed_everywhere(made: Fleet) -> None:
    taps = made.steering.taps
    assert await names_in_force(made) == ["first", "second"]
    added = await taps.create(TapRule(name="third", listeners=("a",)), "second")
    assert [rule.name for rule in added.before] == ["first", "second"]
    assert [rule.name for rule in added.after] == await names_in_force(made)
    assert await names_in_force(made) == ["first", "third", "second"]
    await taps.create(TapRule(name="fourth"))
    assert await names_in_force(made) == ["first", "third", "second", "fourth"]
    changed = await taps.update("third", {"sample_frames": 0.5, "networks": ("10.0.0.0/8",)})
    assert changed.after[1] == TapRule(name="third", listeners=("a",), sample_frames=0.5, networks=("10.0.0.0/8",))
    assert await names_in_force(made) == ["first", "third", "second", "fourth"]
    for before, order in (
        ("first", ["fourth", "first", "third", "second"]),
        ("third", ["first", "fourth", "third", "second"]),
        ("fourth", ["first", "fourth", "third", "second"]),
        ("", ["first", "third", "second", "fourth"]),
    ):
        await taps.update("fourth", {}, before)
        assert await names_in_force(made) == order
    for name in ("first", "fourth", "second", "third"):
        await taps.delete(name)
    assert await names_in_force(made) == []
    assert made.meters.value("config.changes", "") == 11
    assert made.desired.revision == 12


REFUSALS: list[tuple[Callable[[Any], Awaitable[Any]], type[Exception], str]] = [
    (lambda taps: taps.create(TapRule(name="first")), AlreadyExistsError, "tap_rule.name"),
    (lambda taps: taps.create(TapRule(name="x"), "none"), NotFoundError, "none"),
    (lambda taps: taps.create(TapRule(name="x", listeners=("a", "b"))), InvalidArgumentError, "listeners[1]"),
    (lambda taps: taps.create(TapRule(name="x", directions=())), InvalidArgumentError, "directions"),
    (lambda taps: taps.update("first", {"sample_connections": float("nan")}), InvalidArgumentError, "sample_connections"),
    (lambda taps: taps.update("first", {"apis": ("Fetch", "Fech")}), InvalidArgumentError, "apis[1]"),
    (lambda taps: taps.update("first", {"blank": ("0-9",), "hash": ("9-",)}), InvalidArgumentError, "hash"),
    (lambda taps: taps.update("none", {"capture": "hash"}), NotFoundError, "none"),
    (lambda taps: taps.update("first", {}, "none"), NotFoundError, "none"),
    (lambda taps: taps.update("first", {"capture": "hash"}, None, "beef"), EtagError, "first"),
    (lambda taps: taps.delete("none"), NotFoundError, "none"),
    (lambda taps: taps.delete("first", "beef"), EtagError, "first"),
]  # Other rules that are not valid are in ``tests/control/service/test_taps.py``


@pytest.mark.parametrize("validate_only", [False, True])
@run_by(run, 1)
async def test_invalid_rules_are_refused_by_field_without_asking_a_processor(made: Fleet, *, validate_only: bool) -> None:
    class Validating:
        def __getattr__(self, name: str) -> Any:
            method = getattr(made.steering.taps, name)
            return lambda *arguments: method(*arguments, validate_only=validate_only)

    for call, kind, where in REFUSALS:
        with pytest.raises(kind) as caught:
            await call(Validating())
        if isinstance(caught.value, InvalidArgumentError):
            assert [item.field for item in caught.value.violations] == [where]
        else:
            assert where in getattr(caught.value, "metadata", {}).values()
    assert await names_in_force(made) == ["first", "second"]
    assert held(made) == TAP.rules
    assert (made.desired.revision, made.tapped) == (1, [])
    refused = made.meters.value("config.changes", "invalid") + made.meters.value("config.changes", "refused")
    assert refused == (0 if validate_only else len(REFUSALS))


@run_by(run, 1, tap=None)
async def test_without_a_tap_there_are_no_rules_and_none_can_be_made(made: Fleet) -> None:
    assert made.steering.taps.rules() == []
    with pytest.raises(FailedPreconditionError) as caught:
        await made.steering.taps.create(TapRule(name="x"))
    assert caught.value.reason == "NO_TAP"


@run_by(run, 1, tap=dataclasses.replace(TAP, rules=tuple(TapRule(name=f"rule-{number}") for number in range(MAX_RULES))))
async def test_there_is_a_largest_number_of_rules(made: Fleet) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        await made.steering.taps.create(TapRule(name="one-more"))
    assert caught.value.reason == "TOO_MANY_TAP_RULES"
    await made.steering.taps.delete("rule-7")
    await made.steering.taps.create(TapRule(name="one-more"))


@run_by(run, 1)
async def test_validate_only_returns_the_result_and_changes_nothing(made: Fleet) -> None:
    taps = made.steering.taps
    new = TapRule(name="new", sample_frames=0.5)
    assert (await taps.create(new, "first", validate_only=True)).after == (new, *TAP.rules)
    assert (await taps.update("first", {"capture": "hash"}, validate_only=True)).after[0] == dataclasses.replace(FIRST, capture="hash")
    await taps.delete("first", validate_only=True)
    assert await names_in_force(made) == ["first", "second"]
    assert (held(made), made.desired.revision, made.tapped) == (TAP.rules, 1, [])


@run_by(run)
async def test_a_change_for_a_rule_as_it_was_is_made_once(made: Fleet) -> None:
    taps = made.steering.taps
    (first, second) = taps.rules()
    etag = etag_of(FIRST)
    outcomes = await asyncio.gather(
        *(taps.update("first", {"sample_frames": share}, None, etag) for share in (0.25, 0.5, 0.75)), return_exceptions=True
    )
    (made_one,) = [item for item in outcomes if not isinstance(item, BaseException)]
    assert [type(item) for item in outcomes if isinstance(item, BaseException)] == [EtagError, EtagError]
    assert (first.rule, made_one.before[0]) == (FIRST, FIRST)
    assert [taps.rules()[0].rule, taps.rules()[1]] == [made_one.after[0], second]
    await taps.delete("first", etag_of(made_one.after[0]))
    assert await names_in_force(made) == ["second"]


@run_by(run)
async def test_changes_that_are_asked_for_at_once_are_all_made(made: Fleet) -> None:
    """Each of the rules that the one before it has left, not of those that were when it was asked for."""

    await asyncio.gather(*(made.steering.taps.create(TapRule(name=f"rule-{number}")) for number in range(8)))
    assert sorted(await names_in_force(made)) == ["first", *(f"rule-{number}" for number in range(8)), "second"]


def test_an_expired_rule_is_shown_as_such_and_goes_with_the_next_change() -> None:
    gone = TapRule(name="gone", expires_ns=5)
    later = TapRule(name="later", expires_ns=time.time_ns() + HOUR_NS)

    async def scenario(made: Fleet) -> None:
        taps = made.steering.taps
        assert [(item.rule.name, item.expired) for item in taps.rules()] == [("gone", True), ("first", False), ("later", False)]
        await taps.create(TapRule(name="new"), "gone")
        assert await names_in_force(made) == ["new", "first", "later"]
        await taps.update("later", {"expires_ns": 5})
        assert [item.expired for item in taps.rules()] == [False, False, True]
        await taps.update("later", {"expires_ns": 0})
        assert [item.expired for item in taps.rules()] == [False, False, False]
        await taps.update("later", {"expires_ns": 5})
        await taps.create(TapRule(name="later", capture="hash"), "first")
        assert await names_in_force(made) == ["new", "later", "first"]

    run(scenario, 1, tap=dataclasses.replace(TAP, rules=(gone, FIRST, later)))


def test_the_keeper_gets_old_and_new_rules_before_a_change_and_the_new_ones_after_it() -> None:
    answers = TapRule(name="answers", directions=("response",))

    async def scenario(made: Fleet) -> None:
        await made.steering.taps.create(answers)
        assert made.tapped == [(FIRST, FIRST, answers), (FIRST, answers)]
        made.tapped.clear()
        await made.steering.taps.delete("first")
        assert made.tapped == [(FIRST, answers, answers), (answers,)]

    run(scenario, 1, tap=dataclasses.replace(TAP, rules=(FIRST,)))


def test_the_keeper_does_not_get_rules_that_a_later_change_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that goes on late, when the next change is made already, would take back what that one has said."""
    both = TapRule(name="both")

    async def scenario(made: Fleet) -> None:
        late, change = asyncio.Event(), made.supervisor.change

        async def change_late(*arguments: Any) -> None:
            monkeypatch.undo()
            await change(*arguments)
            await late.wait()

        monkeypatch.setattr(made.supervisor, "change", change_late)
        first = asyncio.ensure_future(made.steering.taps.delete("first"))
        await until(lambda: made.tapped)
        await made.steering.taps.create(both)
        late.set()
        await first
        assert made.tapped == [(FIRST,), (both,), (both,)]

    run(scenario, 2, tap=dataclasses.replace(TAP, rules=(FIRST,)))


@run_by(run, 2, "off")
async def test_a_rule_that_turned_itself_off_is_shown_by_processor_until_it_is_changed_or_the_processor_ends(made: Fleet) -> None:
    taps = made.steering.taps
    await taps.create(TapRule(name="doubtful", max_loss_percent=1.0))
    await open_channels(made, 2)
    await until(lambda: len(made.log.events("tap_rule_off")) == 2)
    (status,) = [item for item in taps.rules() if item.stops]
    assert [(stop.slot, stop.cause, stop.percent, stop.limit) for stop in status.stops] == [(0, "loss", 7.5, 1.0), (1, "loss", 8.5, 1.0)]
    assert status.rule == TapRule(name="doubtful", max_loss_percent=1.0)
    assert abs(status.stops[0].since_ns - time.time_ns()) < HOUR_NS
    os.environ["FAKE_PROCESSOR"] = ""
    made.supervisor.running[0].kill("died")
    await until(lambda: made.supervisor.slots[0].restarts == 1 and len(made.supervisor.running) == 2)
    assert [stop.slot for item in taps.rules() for stop in item.stops] == [1]
    await taps.create(TapRule(name="other"))
    assert [len(item.stops) for item in taps.rules()] == [0, 0, 1, 0]
    await taps.delete("doubtful")
    assert [item.stops for item in taps.rules()] == [(), (), ()]


# --- in force everywhere or nowhere


@run_by(run, 1)
async def test_a_change_that_is_not_confirmed_is_decided_and_the_keeper_gets_old_and_new_rules(
    made: Fleet, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    (processor,) = made.supervisor.running
    asking = processor.link.ask

    async def ask(request: Request[Any], number: int) -> Any:
        if request.message["type"] == "commit":
            os.kill(processor.pid, signal.SIGSTOP)
        return await asking(request, number)

    monkeypatch.setattr(two_phases, "PATIENCE_S", 0.2)
    monkeypatch.setattr(processor.link, "ask", ask)
    with pytest.raises(UnavailableError) as caught:
        await made.steering.taps.delete("first")
    os.kill(processor.pid, signal.SIGCONT)
    assert caught.value.reason == "CHANGE_PENDING"
    monkeypatch.undo()
    assert made.tapped == [(FIRST, SECOND, SECOND)]
    assert await names_in_force(made) == ["second"]


@run_by(run, 2, tap=TAP, runner=run_cancelling)
async def test_a_change_that_is_cancelled_anywhere_is_in_force_everywhere_or_nowhere(made: Fleet) -> None:
    await made.steering.taps.update("first", {}, validate_only=True)  # what judges is loaded
    ends: set[bool] = set()
    number = 0

    def call() -> Any:
        nonlocal number
        number += 1
        return made.steering.taps.create(TapRule(name=f"rule-{number}"))

    async def check() -> None:
        await until(lambda: not made.steering.transactions._running)
        there = f"rule-{number}" in await names_in_force(made)
        ends.add(there)
        if there:
            await made.steering.taps.delete(f"rule-{number}")
        assert await names_in_force(made) == ["first", "second"]

    cancelled = await at_every_turn(call, check)
    assert cancelled >= 3
    assert ends == {True, False}


# Lost frames.


class Cells:
    """Of one processor: what it dropped, by reason."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}

    def cell(self, name: str, reason: str) -> int:
        assert name == "framegate.tap.dropped"
        return self.dropped.get(reason, 0)


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.low = ""
        self.slots = [Cells(), Cells()]
        self.log = MemoryLog()
        readers = [(number, cast(CellReader, cells)) for number, cells in enumerate(self.slots)]
        self.losses = TapLosses(lambda: readers, self.log, "/tap", lambda: self.low, lambda: self.now)

    def after(self, seconds: float, slot: int = 0, **dropped: int) -> list[tuple[str, dict[str, int], float]]:
        """The rows that a look then writes."""
        self.now += seconds
        for reason, count in dropped.items():
            self.slots[slot].dropped[reason] = self.slots[slot].dropped.get(reason, 0) + count
        known = len(self.log.rows)
        self.losses.look()
        return [(row["event"], row["frames"], row["seconds"]) for row in self.log.rows[known:]]


def test_a_loss_has_a_row_when_it_begins_each_minute_and_when_it_ends() -> None:
    bench = Bench()
    assert (bench.after(1), bench.losses.losing, bench.losses.troubles) == ([], False, [])
    assert bench.after(1, disk_full=5) == [("tap_losing", {"disk_full": 5}, 0.0)]
    assert bench.losses.losing
    assert bench.after(1, slot=1, queue_full=2) == []
    assert bench.after(7, disk_full=1) == []
    for _ in range(6):
        assert bench.after(8, disk_full=10) == []
    assert bench.after(EACH_S - 56, disk_full=10) == [("tap_losing", {"queue_full": 2, "disk_full": 71}, EACH_S)]
    assert bench.losses.troubles == ["the tap loses frames, for 60 s: 2 queue_full, 76 disk_full; gaps in its log say how many"]
    assert bench.after(OVER_S - 0.1) == []
    assert bench.after(0.1) == [("tap_losing_ended", {"queue_full": 2, "disk_full": 76}, EACH_S)]
    assert (bench.losses.losing, bench.losses.troubles, bench.after(100)) == (False, [], [])
    assert bench.after(1, disk_error=1) == [("tap_losing", {"disk_error": 1}, 0.0)], "the next one is another"


def test_a_loss_at_the_end_of_framegate_has_a_row_with_all_lost_frames() -> None:
    bench = Bench()
    bench.after(1, disk_full=5)
    bench.slots[1].dropped["disk_full"] = 7
    bench.now += 2
    bench.losses.close()
    bench.losses.close()
    assert [(row["event"], row["frames"]) for row in bench.log.rows] == [("tap_losing", {"disk_full": 5}), ("tap_losing_ended", {"disk_full": 12})]
