"""The run: what counts as seen, as over, as data that is due; with a clock that only the run moves."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from control.demo.telemetry import run
from control.demo.telemetry.panels import FINE, Dashboard, Panel, Seen, read
from control.demo.telemetry.prometheus import QueryError
from control.demo.telemetry.scene import JOB, SCRAPE_JOB
from control.demo.telemetry.troubles import Trouble

WORDS = "Frames are refused"
BOARD = read(Path(__file__).resolve().parents[4] / "deploy" / "dashboards")[0]


class World:
    """A clock, and a first dashboard that says what ``says`` is at that time."""

    def __init__(self, says: Callable[[float], list[str]] = lambda now: [FINE]) -> None:
        self.now = 1000.0
        self.says = says
        self.series: dict[str, list[dict[str, str]]] = {}
        self.metrics: dict[str, str] = {}

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def instant(self, query: str, _at: float) -> dict[str, Any]:
        for job, rows in self.series.items():
            if query.startswith("last_over_time") and f'"{job}"' in query:
                return {"result": [{"metric": row} for row in rows]}
        return {"result": [{"metric": {"problem": words}, "value": [self.now, "2"]} for words in self.says(self.now)]}

    @property
    def prometheus(self) -> "World":
        return self


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def make(world: World, seconds: float = 6.0, job: str = JOB, boards: list[Dashboard] | None = None) -> Any:
        monkeypatch.setattr(run, "time", world)
        return run._Run(world, boards or [BOARD], Console(file=io.StringIO()), seconds, job, plain=True)  # type: ignore[arg-type]

    return make


def trouble(begin: Callable[[], None] = lambda: None, *, lasts: bool = True) -> Trouble:
    @contextlib.contextmanager
    def going(_scene: object) -> Iterator[None]:
        begin()
        yield

    return Trouble(name="oversized-frames", title="frames", words=WORDS, explained="hurts", going=going, lasts=lasts)


@pytest.mark.parametrize(("after", "seen"), [(run.INTERVAL_S - 0.5, True), (run.INTERVAL_S, True), (run.INTERVAL_S + 0.5, False)])
def test_a_trouble_must_be_seen_within_one_interval(start: Callable[..., Any], after: float, seen: bool) -> None:
    world = World(lambda now: [WORDS] if 1000 + after <= now < 1018 else [FINE])
    going = start(world)
    phase = going._trouble(trouble())
    assert (phase.visible_s is not None) == seen
    assert bool(going._faults) != seen
    if not seen:
        assert going._faults == [f"oversized-frames: {WORDS!r} was not on the first dashboard within {run.INTERVAL_S} s, but: {FINE}"]


def test_words_that_were_there_before_prove_nothing(start: Callable[..., Any]) -> None:
    going = start(World(lambda now: [WORDS] if now < 1010 else [FINE]))
    going._trouble(trouble())
    assert going._faults == [f"oversized-frames: the first dashboard said {WORDS!r} before it began"]


def test_a_trouble_that_does_not_end_on_the_dashboard_is_a_fault(start: Callable[..., Any]) -> None:
    going = start(World(lambda now: [WORDS] if now > 1000 else [FINE]))
    going._trouble(trouble())
    assert [fault.partition(":")[2] for fault in going._faults] == [f" 30 s after its end the first dashboard says: {WORDS}"]


def test_fine_for_a_moment_is_not_fine(start: Callable[..., Any]) -> None:
    world = World(lambda now: [FINE] if now < 1002 or now >= 1004 else [WORDS])
    assert start(world)._until_fine(30) == [FINE]
    assert world.now == 1004 + run._STEADY_S


def test_what_is_over_at_once_is_kept_no_longer_than_an_export(start: Callable[..., Any]) -> None:
    world = World(lambda now: [WORDS] if 1000 < now < 1003 else [FINE])
    phase = start(world, seconds=60)._trouble(trouble(lasts=False))
    assert phase.words == (WORDS,)


def test_a_calm_that_is_none_is_a_fault(start: Callable[..., Any]) -> None:
    going = start(World(lambda now: ["A certificate ends within three days"]))
    going._calm()
    assert len(going._faults) == 1


@pytest.mark.parametrize(
    ("nothing", "seen", "faults"),
    [
        (None, [Seen(), Seen()], ["x: Why?: no data, in calm and in trouble"]),
        ("nobody", [Seen(), Seen()], []),
        (None, [Seen(), Seen(answers=[{"data": {"result": [1]}}])], []),
        ("nobody", [Seen(fault="A: parse error"), Seen()], ["x: Why?: A: parse error"]),
    ],
)
def test_data_is_due_unless_a_panel_says_what_none_means(start: Callable[..., Any], nothing: str | None, seen: list[Seen], faults: list[str]) -> None:
    board = Dashboard(slug="x", document={}, panels=(Panel(id=1, title="Why?", targets=(), nothing=nothing, folded=False),))
    going = start(World(), boards=[board])
    going._judge_panels({"calm": {"x": {1: seen[0]}}, "full-tap": {"x": {1: seen[1]}}})
    assert going._faults == faults


def test_a_series_by_one_way_only_is_a_fault_with_its_name(start: Callable[..., Any]) -> None:
    world = World()
    world.series = {JOB: [{"__name__": "a"}, {"__name__": "b"}], SCRAPE_JOB: [{"__name__": "a"}]}
    going = start(world)
    assert going._compare(going._window()).both == 1
    assert going._faults == ["series by OTLP only: b"]


def test_a_prometheus_that_fails_ends_the_run_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def broken(*_: object) -> Iterator[None]:
        raise QueryError("127.0.0.1:1: refused")
        yield

    tools = SimpleNamespace(missing=list, no_collector=lambda: None)
    monkeypatch.setattr(run, "find", lambda: tools)
    monkeypatch.setattr(run, "scene", broken)
    folder = Path(__file__).resolve().parents[4] / "deploy" / "dashboards"
    assert run.run(folder, directory=tmp_path / "demo", plain=True) == 1
    assert capsys.readouterr().err == "framegate demo: 127.0.0.1:1: refused\n"
    assert run.run(tmp_path, directory=tmp_path / "demo", plain=True) == 2
    assert "name their folder, deploy/dashboards of a checkout, with --dashboards" in capsys.readouterr().err
