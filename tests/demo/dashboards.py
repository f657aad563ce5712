"""``make dashboards``: the calm, then one scenario after another, and whether the first dashboard shows each within one interval."""

import concurrent.futures
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from framegate.control.demo.ending import EXIT_FAILED, EXIT_MISSING, EXIT_OK, ended, exit_code
from framegate.control.demo.stage import Stage, Workspace
from framegate.control.demo.view import Waiting, say
from tests.demo import panels
from tests.demo.environment import EXPORT_S, JOB, SCRAPE_JOB, Environment, Tools, environment, find
from tests.demo.panels import FINE, Comparison, Dashboard, QueryError, Seen, Window
from tests.demo.pictures import PictureError, draw
from tests.demo.scenarios import SCENARIOS, Scenario

__all__ = ["INTERVAL_S", "run"]

RATE_S: Final = 5
"""The value of ``$__rate_interval``: Grafana takes four scrapes; one more allows for late samples."""
INTERVAL_S: Final = RATE_S + 3 * EXPORT_S + 2
"""Within so long a scenario must be seen: the interval of a rate, one export, one scrape, one look, and two seconds for a busy machine."""
_CALM_S: Final = 45.0
_CALM_AGAIN_S: Final = 30.0
_STEADY_S: Final = 3.0
_LOOK_S: Final = 0.5
_SHOWN_S: Final = 90.0
_DRAWN_AT_ONCE: Final = 2

Views = dict[str, dict[int, Seen]]


class _Phase(NamedTuple):
    """``words``: what the first dashboard said; ``visible_s``: after so long it said what was expected; None: it did not."""

    name: str
    title: str
    window: Window
    words: list[str]
    visible_s: float | None


def run(
    dashboards: Path,
    *,
    seconds: float = 12.0,
    only: Sequence[str] = (),
    pictures: Path | None = None,
    directory: Path | None = None,
    plain: bool = False,
) -> int:
    """Run it to its report.

    Args:
        dashboards: the folder with their JSON files; ``collector/collector.yaml`` lies beside it.
        seconds: how long the calm, and each scenario after it was seen, goes on.
        only: names of scenarios; all when empty.
        pictures: a folder for PNG files, ``panels.json`` and ``panels.md``; None for none.
        directory: the folder of the run, as of ``framegate demo``.
        plain: lines instead of a moving clock.

    Returns:
        0: every scenario was seen in time, every panel had its data; 1: something was not, or failed; 2: something is missing here; 130, 143.
    """
    tools = find()
    if tools.missing():
        return ended("; ".join(tools.missing()), EXIT_MISSING)
    try:
        boards = panels.read(dashboards)
    except OSError as error:
        return ended(f"the dashboards are not there: {error}; name their folder, deploy/dashboards of a checkout, with --dashboards", EXIT_MISSING)
    console = Console()
    if tools.no_collector():
        say(console, f"OTLP: not run: {tools.no_collector()}")

    def perform() -> int:
        with Stage(Workspace(directory, "framegate-demo-telemetry")) as stage:
            going = environment(stage, tools, dashboards.parent / "collector" / "collector.yaml", lambda text: say(console, text))
            with Waiting(console, "starting: a collector, two framegates, Prometheus, clients", plain=plain):
                found = going.__enter__()
            try:
                scenarios = [one for one in SCENARIOS if (not only or one.name in only) and (found.tap_disk is not None or not one.needs_disk)]
                job = SCRAPE_JOB if tools.no_collector() else JOB
                good = _Run(found, boards, console, seconds, job, plain=plain).perform(scenarios, tools, pictures)
                return EXIT_OK if good else EXIT_FAILED
            finally:
                going.__exit__(None, None, None)

    return exit_code(perform, QueryError)


class _Run:
    """Everything after the start."""

    def __init__(self, found: Environment, boards: list[Dashboard], console: Console, seconds: float, job: str, *, plain: bool) -> None:
        self._environment = found
        self._boards = boards
        self._console = console
        self._seconds = seconds
        self._job = job
        self._plain = plain
        self._faults: list[str] = []
        self._began = time.time()

    def perform(self, scenarios: Sequence[Scenario], tools: Tools, pictures: Path | None) -> bool:
        """All phases, then what the panels showed in them; whether everything was good."""
        phases = [self._calm(), *(self._scenario(scenario) for scenario in scenarios)]
        with Waiting(self._console, "asking every panel of every dashboard", plain=self._plain):
            views = {phase.name: self._look(phase.window) for phase in phases}
        self._check_panels(views)
        compared = self._compare(phases[-1].window) if self._job == JOB else None
        if pictures is not None:
            heads = {
                "phases": {phase.name: {"title": phase.title, "words": phase.words, "visible_s": phase.visible_s} for phase in phases},
                "series": None if compared is None else compared._asdict(),
            }
            panels.write(pictures, self._boards, views, heads)
            self._draw(phases, views, tools, pictures)
        for fault in self._faults:
            self._say(f"WRONG {fault}")
        self._say("RESULT: NOT everything was seen: see WRONG" if self._faults else "RESULT: every scenario seen, every panel has its data")
        return not self._faults

    def _say(self, text: str) -> None:
        say(self._console, text)

    def _calm(self) -> _Phase:
        """Wait until nothing is wrong, then record the calm."""
        words = self._until_fine(_CALM_S)
        self._began = time.time()
        if words != [FINE]:
            self._faults.append(f"calm: the first dashboard does not say that everything is fine, but: {'; '.join(words)}")
        self._wait(max(self._seconds, 3 * RATE_S), "calm")
        words = self._words()
        self._say(f"calm: {'; '.join(words)}")
        return _Phase("calm", "calm", self._window(), words, None)

    def _scenario(self, scenario: Scenario) -> _Phase:
        """Begin it, wait until it is seen, let it go on for the pictures, end it, and wait until everything is fine."""
        if scenario.words in self._words():
            self._faults.append(f"{scenario.name}: the first dashboard said {scenario.words!r} before it began")
        began = time.monotonic()
        with scenario.going(self._environment):
            while scenario.words not in (words := self._words()) and time.monotonic() - began < INTERVAL_S:
                time.sleep(_LOOK_S)
            visible = time.monotonic() - began if scenario.words in words else None
            said = "; ".join(words)
            if visible is None:
                self._faults.append(f"{scenario.name}: {scenario.words!r} was not on the first dashboard within {INTERVAL_S} s, but: {said}")
                self._say(f"{scenario.title}: NOT SEEN within {INTERVAL_S} s; the first dashboard says: {said}")
            else:
                self._say(f"{scenario.title}: after {visible:.1f} s the first dashboard says: {said}")
            self._wait(self._seconds if scenario.lasts else EXPORT_S, scenario.title)
            words, window = self._words(), self._window()
        again = self._until_fine(_CALM_AGAIN_S)
        if again == [FINE]:
            self._say("  over: everything is fine")
        else:
            self._faults.append(f"{scenario.name}: {_CALM_AGAIN_S:g} s after its end the first dashboard says: {'; '.join(again)}")
        return _Phase(scenario.name, scenario.title, window, words, visible)

    def _until_fine(self, patience_s: float) -> list[str]:
        """What the first dashboard says when it has said for 3 s that everything is fine, or when the time is over."""
        deadline = time.monotonic() + patience_s
        words: list[str] = []
        with Waiting(self._console, "waiting until everything is fine", lambda: "; ".join(words), plain=self._plain):
            fine_since = None
            while (now := time.monotonic()) < deadline:
                words = self._words()
                fine_since = None if words != [FINE] else fine_since or now
                if fine_since is not None and now - fine_since >= _STEADY_S:
                    break
                time.sleep(_LOOK_S)
        return words

    def _wait(self, seconds: float, text: str) -> None:
        with Waiting(self._console, text, plain=self._plain):
            time.sleep(seconds)

    def _words(self) -> list[str]:
        return panels.problems(self._boards[0], self._environment.prometheus, self._window())

    def _window(self) -> Window:
        now, every = time.time(), f"{EXPORT_S}s"
        start = max(self._began, now - _SHOWN_S)
        everything = dict.fromkeys(("instance", "pod", "listener", "upstream"), ".*")
        times = {"interval": every, "__interval": every, "__rate_interval": f"{RATE_S}s", "__range": f"{max(1, round(now - start))}s"}
        # the Spark job exports beside framegate
        return Window(start, now, {**everything, **times, "job": f"{self._job}.*"})

    def _look(self, window: Window) -> Views:
        return {board.slug: {panel.id: panel.ask(self._environment.prometheus, window) for panel in board.panels} for board in self._boards}

    def _check_panels(self, views: dict[str, Views]) -> None:
        """A failed query is a fault in any phase; a panel without data is one if it has none in all phases and no text for that case."""
        asked = 0
        for board in self._boards:
            for panel in board.panels:
                seen = [views[name][board.slug][panel.id] for name in views]
                asked += len(seen)
                self._faults += [f"{board.slug}: {panel.title}: {one.fault}" for one in seen if one.fault]
                if panel.nothing is None and all(one.empty for one in seen):
                    self._faults.append(f"{board.slug}: {panel.title}: no data, in calm and in every scenario")
        self._say(f"panels: {sum(len(board.panels) for board in self._boards)} on {len(self._boards)} dashboards, asked {asked} times")

    def _compare(self, window: Window) -> Comparison:
        """The names over OTLP and by the scrape, in this very run."""
        at = self._environment
        otlp, scraped = (
            [row["metric"] for row in at.prometheus.instant(f'last_over_time({{job="{job}"}}[30s])', window.end)["result"]]
            for job in (JOB, SCRAPE_JOB)
        )
        compared = panels.compare(otlp, scraped, {address: node for node, address in at.metrics.items()})
        counts = f"by OTLP only: {len(compared.only_otlp)}; by the scrape only: {len(compared.only_scrape)}"
        self._say(f"series by both ways: {compared.both}; {counts}")
        for way, only in (("OTLP", compared.only_otlp), ("the scrape", compared.only_scrape)):
            names = sorted({text.partition(": ")[2].partition("{")[0] for text in only})
            if names:
                self._faults.append(f"series by {way} only: {', '.join(names)}")
        return compared

    def _draw(self, phases: Sequence[_Phase], views: dict[str, Views], tools: Tools, folder: Path) -> None:
        reason = tools.no_pictures()
        if reason is not None or tools.browser is None or tools.page is None:
            self._say(f"pictures: not drawn: {reason}")
            return
        done: list[concurrent.futures.Future[None]] = []
        count = len(phases) * len(self._boards)
        with (
            Waiting(self._console, f"drawing {count} pictures", lambda: f"{sum(one.done() for one in done)} drawn", plain=self._plain),
            concurrent.futures.ThreadPoolExecutor(_DRAWN_AT_ONCE) as threads,
        ):
            for phase in phases:
                for board in self._boards:
                    target, seen = folder / f"{board.slug}-{phase.name}.png", views[phase.name][board.slug]
                    done.append(threads.submit(draw, tools.browser, tools.page, target, board, seen, phase.window, phase.title))
        for one in done:
            error = one.exception()
            if isinstance(error, PictureError):
                self._faults.append(f"pictures: {error}")
            elif error is not None:
                raise error
        self._say(f"pictures, panels.md and panels.json: {folder}")
