"""``make dashboards``: calm, then one scenario after another, and whether the first dashboard said so within one interval."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from framegate.control.demo.signals import EXIT_FAILED, EXIT_MISSING, EXIT_OK, ended, exit_code
from framegate.control.demo.stage import Stage
from framegate.control.demo.view import Waiting, say
from framegate.control.demo.workspace import Workspace
from tests.demo import comparison, panels
from tests.demo.environment import EXPORT_S, JOB, SCRAPE_JOB, Environment, Tools, environment, find
from tests.demo.panels import FINE, Dashboard, QueryError, Seen, Window
from tests.demo.pictures import Photographer, PictureError
from tests.demo.scenarios import SCENARIOS, Scenario

__all__ = ["INTERVAL_S", "run"]

RATE_S: Final = 5
"""What ``$__rate_interval`` is here: Grafana takes four scrapes, and one more for what comes late."""
INTERVAL_S: Final = RATE_S + 3 * EXPORT_S + 2
"""One interval, within which a scenario must be seen: a rate's, after one export, one scrape and one look, and two seconds for a busy machine."""
_CALM_S: Final = 45.0
_CALM_AGAIN_S: Final = 30.0
_STEADY_S: Final = 3.0
_LOOK_S: Final = 0.5
_SHOWN_S: Final = 90.0
_AT_ONCE: Final = 2

Views = dict[str, dict[int, Seen]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """Attributes: ``words``: what the first dashboard said; ``visible_s``: after how long the expected ones were there; None: they were not."""

    name: str
    title: str
    window: Window
    words: tuple[str, ...]
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
        dashboards: the folder with their JSON files; beside it lies ``collector/collector.yaml``.
        seconds: how long the calm, and each scenario once it is seen, goes on.
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
                "series": None if compared is None else dataclasses.asdict(compared),
            }
            comparison.write(pictures, self._boards, views, heads)
            self._draw(phases, views, tools, pictures)
        for fault in self._faults:
            say(self._console, f"WRONG {fault}")
        say(
            self._console,
            "RESULT: every scenario seen, every panel has its data" if not self._faults else "RESULT: NOT everything was seen: see WRONG",
        )
        return not self._faults

    def _calm(self) -> _Phase:
        """Wait until nothing is wrong, and stay so for a while."""
        words = self._until_fine(_CALM_S)
        self._began = time.time()
        if words != [FINE]:
            self._faults.append(f"calm: the first dashboard does not say that everything is fine, but: {'; '.join(words)}")
        self._wait(max(self._seconds, 3 * RATE_S), "calm")
        words = self._words()
        say(self._console, f"calm: {'; '.join(words)}")
        return _Phase(name="calm", title="calm", window=self._window(), words=tuple(words), visible_s=None)

    def _scenario(self, scenario: Scenario) -> _Phase:
        """Make it, see it, keep it for the pictures, end it, and see that it is over."""
        before = self._words()
        if scenario.words in before:
            self._faults.append(f"{scenario.name}: the first dashboard said {scenario.words!r} before it began")
        began = time.monotonic()
        with scenario.going(self._environment):
            while scenario.words not in (words := self._words()) and time.monotonic() - began < INTERVAL_S:
                time.sleep(_LOOK_S)
            took = time.monotonic() - began
            visible = took if scenario.words in words else None
            if visible is None:
                self._faults.append(
                    f"{scenario.name}: {scenario.words!r} was not on the first dashboard within {INTERVAL_S} s, but: {'; '.join(words)}"
                )
                say(self._console, f"{scenario.title}: NOT SEEN within {INTERVAL_S} s; the first dashboard says: {'; '.join(words)}")
            else:
                say(self._console, f"{scenario.title}: after {took:.1f} s the first dashboard says: {'; '.join(words)}")
            self._wait(self._seconds if scenario.lasts else EXPORT_S, scenario.title)
            words, window = self._words(), self._window()
        again = self._until_fine(_CALM_AGAIN_S)
        if again == [FINE]:
            say(self._console, "  over: everything is fine")
        else:
            self._faults.append(f"{scenario.name}: {_CALM_AGAIN_S:g} s after its end the first dashboard says: {'; '.join(again)}")
        return _Phase(name=scenario.name, title=scenario.title, window=window, words=tuple(words), visible_s=visible)

    def _until_fine(self, patience_s: float) -> list[str]:
        """What the first dashboard says when it has said for a while that everything is fine, or when nobody waits any longer."""
        deadline = time.monotonic() + patience_s
        words: list[str] = []
        with Waiting(self._console, "waiting until everything is fine", lambda: "; ".join(words), plain=self._plain):
            fine_since = None
            while (now := time.monotonic()) < deadline:
                words = self._words()
                fine_since = None if words != [FINE] else now if fine_since is None else fine_since
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
        now = time.time()
        everything = dict.fromkeys(("node", "pod", "listener"), ".*")
        # the Spark job exports beside framegate
        variables = {**everything, "job": f"{self._job}.*", "interval": f"{EXPORT_S}s", "__interval": f"{EXPORT_S}s", "__rate_interval": f"{RATE_S}s"}
        start = max(self._began, now - _SHOWN_S)
        return Window(start=start, end=now, variables={**variables, "__range": f"{max(1, round(now - start))}s"})

    def _look(self, window: Window) -> Views:
        return {board.slug: {panel.id: panel.ask(self._environment.prometheus, window) for panel in board.panels} for board in self._boards}

    def _check_panels(self, views: dict[str, Views]) -> None:
        """A query that fails is a fault at any time; a panel without data in every phase is, unless it says itself what that means."""
        asked = 0
        for board in self._boards:
            for panel in board.panels:
                seen = [views[name][board.slug][panel.id] for name in views]
                asked += len(seen)
                self._faults += [f"{board.slug}: {panel.title}: {one.fault}" for one in seen if one.fault]
                if panel.nothing is None and all(one.empty for one in seen):
                    self._faults.append(f"{board.slug}: {panel.title}: no data, in calm and in every scenario")
        say(self._console, f"panels: {sum(len(board.panels) for board in self._boards)} on {len(self._boards)} dashboards, asked {asked} times")

    def _compare(self, window: Window) -> comparison.Comparison:
        """The names over OTLP and by the scrape, in this very run."""
        nodes = {address: node for node, address in self._environment.metrics.items()}
        ways = {job: self._environment.prometheus.instant(f'last_over_time({{job="{job}"}}[30s])', window.end)["result"] for job in (JOB, SCRAPE_JOB)}
        compared = comparison.compare((row["metric"] for row in ways[JOB]), (row["metric"] for row in ways[SCRAPE_JOB]), nodes)
        say(
            self._console,
            f"series by both ways: {compared.both}; by OTLP only: {len(compared.only_otlp)}; by the scrape only: {len(compared.only_scrape)}",
        )
        for way, only in (("OTLP", compared.only_otlp), ("the scrape", compared.only_scrape)):
            names = sorted({text.partition(": ")[2].partition("{")[0] for text in only})
            if names:
                self._faults.append(f"series by {way} only: {', '.join(names)}")
        return compared

    def _draw(self, phases: Sequence[_Phase], views: dict[str, Views], tools: Tools, folder: Path) -> None:
        reason = tools.no_pictures()
        if reason is not None:
            say(self._console, f"pictures: not drawn: {reason}")
            return
        assert tools.browser is not None, "no_pictures says so"
        assert tools.page is not None, "no_pictures says so"
        photographer = Photographer(tools.browser, tools.page, folder)
        jobs = [(board, phase) for phase in phases for board in self._boards]

        def draw(job: tuple[Dashboard, _Phase]) -> None:
            board, phase = job
            photographer.draw(board, views[phase.name][board.slug], phase.window, phase.name, phase.title)

        done: list[concurrent.futures.Future[None]] = []
        with (
            Waiting(self._console, f"drawing {len(jobs)} pictures", lambda: f"{sum(one.done() for one in done)} drawn", plain=self._plain),
            concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads,
        ):
            done += [threads.submit(draw, job) for job in jobs]
        for one in done:
            error = one.exception()
            if isinstance(error, PictureError):
                self._faults.append(f"pictures: {error}")
            elif error is not None:
                raise error
        say(self._console, f"pictures, panels.md and panels.json: {folder}")
