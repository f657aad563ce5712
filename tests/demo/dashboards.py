"""``make dashboards``: the calm, then every trouble: when the first dashboard says what is wrong and where; when the alert fires, and ends."""

import concurrent.futures
import itertools
import json
import os
import queue
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from framegate.control.demo.ending import EXIT_FAILED, EXIT_MISSING, EXIT_OK, ended, exit_code
from framegate.control.demo.processes import ChildError
from framegate.control.demo.stage import Stage, Workspace
from framegate.control.demo.view import Waiting, say
from framegate.control.steering.alerts import ALERTS
from framegate.control.steering.condition import WINDOW_S
from tests.demo import panels
from tests.demo.environment import EXPORT_S, FASTER, JOB, SCRAPE_JOB, Environment, Node, Tools, environment, find, seconds_of
from tests.demo.panels import FINE, Comparison, Dashboard, QueryError, Row, Seen, Window
from tests.demo.pictures import PictureError, draw
from tests.demo.troubles import TROUBLES, Trouble

RATE_S: Final = 10  # the value of ``$__rate_interval``: ten scrapes, where Grafana takes at least four
SEEN_S: Final = 60.0  # Within so long the first dashboard must say what is wrong, and ``framegate status`` too
NODES: Final = 4  # Troubles at once, each on a node of its own
_SLACK_S: Final = 30.0  # for export, scrape, rule and look, on a busy machine
_ENDS_S: Final = 600.0 / FASTER + 60.0
"""After so long without the trouble its alert must have ended: ten minutes, shortened as rules are; lists of clients are of the last minute."""
_CALM_S: Final = 75.0
_STEADY_S: Final = 3.0
_LOOK_S: Final = 2.0
_SHOWN_S: Final = 90.0
_STOOD_STILL: Final = "The control process stood still"
_HALTED_S: Final = 10.0
_DRAWN_AT_ONCE: Final = 2
_OF_THE_MACHINE: Final = frozenset({"A process waits for a CPU", "A processor has no time left", "Frames take longer than 10 ms to pass"})
"""What is said rightly where other programs take the CPUs. It is shown, and is no fault."""
_LATELY: Final = frozenset(
    problem.words for alert in ALERTS for problem in alert.problems if any(part.window_s > WINDOW_S for part in problem.condition.parts)
)  # what is said for ten minutes after it has happened

Views = dict[str, dict[int, Seen]]


class _Phase(NamedTuple):
    """The calm, or a trouble: what the first dashboard said, and when. None: it did not."""

    name: str
    title: str
    window: Window
    rows: list[Row]  # problems and their places when the words were seen; ``text``: those with these words, or all
    text: str
    # seen_s, status_s, fired_s: seconds from the beginning until the first dashboard, ``framegate status`` and Prometheus' alert said so
    seen_s: float | None = None
    status_s: float | None = None
    fired_s: float | None = None
    ended_s: float | None = None  # seconds from the end until the alert did not fire
    alert: str = ""
    others: tuple[str, ...] = ()  # further alerts that fired, with their severities


def run(deploy: Path, *, only: Sequence[str] = (), pictures: Path | None = None, directory: Path | None = None) -> int:
    """Run it to its report.

    Args:
        deploy: the folder with ``dashboards``, ``alerts`` and ``collector``.
        only: names of troubles; all when empty.
        pictures: a folder for PNG files and ``troubles.json``; None for none.
        directory: the folder of the run, as of ``framegate demo``.

    Returns: 0: all was said in time, every panel had its data; 1: something was not, or failed; 2: something is missing here; 130, 143.
    """
    tools = find()
    if tools.missing():
        return ended("; ".join(tools.missing()), EXIT_MISSING)
    try:
        boards = panels.read(deploy / "dashboards")
    except OSError as error:
        return ended(f"the dashboards are not there: {error}", EXIT_MISSING)
    console = Console()
    if tools.no_collector():
        say(console, f"OTLP: not run: {tools.no_collector()}")

    def perform() -> int:
        chosen = [one for one in TROUBLES if not only or one.name in only]
        with Stage(Workspace(directory, "framegate-demo-telemetry")) as stage:
            going = environment(stage, tools, deploy, min(NODES, len(chosen)))
            with Waiting(console, "starting: a collector, framegates with servers and clients, Prometheus"):
                found = going.__enter__()
            try:
                good = _Run(found, boards, console, SCRAPE_JOB if tools.no_collector() else JOB).perform(chosen, tools, pictures)
                return EXIT_OK if good else EXIT_FAILED
            finally:
                going.__exit__(None, None, None)

    return exit_code(perform, QueryError)


class _Run:
    """Everything after the start."""

    def __init__(self, found: Environment, boards: list[Dashboard], console: Console, job: str) -> None:
        self._nodes, self._prometheus = found
        self._boards = boards
        self._console = console
        self._job = job
        self._faults: list[str] = []
        self._views: dict[str, Views] = {}
        self._began = time.time()
        self._over = False

    def perform(self, troubles: Sequence[Trouble], tools: Tools, pictures: Path | None) -> bool:
        """All phases, then what the panels showed in them; whether everything was good."""
        started = time.monotonic()
        phases = [self._calm("calm", self._nodes)]
        self._began = time.time() - RATE_S
        waiting: queue.SimpleQueue[Trouble] = queue.SimpleQueue()
        for trouble in troubles:
            waiting.put(trouble)
        with concurrent.futures.ThreadPoolExecutor(len(self._nodes)) as threads:
            lanes = [threads.submit(self._lane, node, waiting) for node in self._nodes]
            try:
                phases += itertools.chain.from_iterable(lane.result() for lane in lanes)
            except BaseException:
                self._over = True
                raise
        self._table(phases[1:])
        self._halt(self._nodes[-1])
        self._check_panels()
        compared = self._compare(phases[0].window) if self._job == JOB else None
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            told = {phase.name: {**phase._asdict(), "window": None} for phase in phases}
            (pictures / "troubles.json").write_text(json.dumps({"phases": told, "series": compared and compared._asdict()}, indent=1) + "\n")
            self._draw(phases, tools, pictures)
        result = "NOT everything was said: see WRONG" if self._faults else "all troubles were said"
        self._say(f"RESULT after {time.monotonic() - started:.0f} s: {result}")
        return not self._faults

    def _say(self, text: str) -> None:
        say(self._console, text)

    def _wrong(self, text: str) -> None:
        self._faults.append(text)
        self._say(f"WRONG {text}")

    def _lane(self, node: Node, waiting: "queue.SimpleQueue[Trouble]") -> list[_Phase]:
        """One trouble after another on a node, until there is none left."""
        phases: list[_Phase] = []
        while not self._over:
            try:
                trouble = waiting.get_nowait()
            except queue.Empty:
                break
            reason = trouble.impossible(node)
            if reason:
                self._say(f"{trouble.title}: not run: {reason}")
                continue
            try:
                phases.append(self._trouble(node, trouble))
            except (ChildError, OSError) as error:
                self._wrong(f"{trouble.name}: {error}")
            self._until_fine([node], trouble.name)
        return phases

    def _calm(self, name: str, nodes: Sequence[Node]) -> _Phase:
        """Wait until nothing is wrong, and look at all panels."""
        self._until_fine(nodes, name)
        time.sleep(2 * RATE_S)
        window = self._window(nodes[0].name)
        self._views[name] = self._look(window)
        return _Phase(name, name, window, rows := self._rows(nodes[0]), _text(rows, ""))

    def _trouble(self, node: Node, trouble: Trouble) -> _Phase:
        """Make it, wait until everything says so, look at all panels, end it, and wait until the alert has ended."""
        alert, words = trouble.alert, trouble.words
        due_s = seconds_of(alert.hold) + max(map(seconds_of, alert.windows))
        own = f'alertname="{alert.name}", severity="{alert.severity}", problem="{words}"'
        before = {row.problem for row in self._rows(node)}
        if words in before:
            self._wrong(f"{trouble.name}: the first dashboard said {words!r} before it began")
        if trouble.by_alert_alone:  # there must have been an hour before
            time.sleep(max(self._began + seconds_of("1h") + due_s - time.time(), 0))
        found: dict[str, float] = {}
        shown: list[Row] = []
        began = time.time()
        with trouble.going(node):
            for passed in self._passing(SEEN_S + due_s + _SLACK_S):
                rows = self._rows(node)
                if "seen" not in found and self._names(rows, trouble):
                    found["seen"], shown = passed, rows
                if "fired" not in found and self._firing(node, own):
                    found["fired"] = passed
                if "status" not in found and any(words in text for text in node.steering.proxy().warnings):
                    found["status"] = passed
                if len(found) == 3 or ("seen" not in found and passed > SEEN_S) or (trouble.by_alert_alone and "fired" in found):
                    break
            shown = shown or self._rows(node)
            window = self._window(node.name)
            self._views[trouble.name] = self._look(window)
        for passed in self._passing(_ENDS_S + _SLACK_S):
            if not self._firing(node, own):
                found["ended"] = passed
                break
        others = self._firing(node, f'problem!~"{"|".join(_OF_THE_MACHINE)}"', f"[{round(time.time() - began)}s]")
        others = [one for one in others if one != f"{alert.name} {alert.severity}"]
        phase = _Phase(
            trouble.name,
            trouble.title,
            window,
            shown,
            _text(shown, words),
            seen_s=found.get("seen"),
            status_s=found.get("status"),
            fired_s=found.get("fired"),
            ended_s=found.get("ended"),
            alert=alert.name,
            others=tuple(others),
        )
        self._judge(trouble, phase, found.get("seen", 0.0) + due_s + _SLACK_S)
        seen = "NOT SEEN" if phase.seen_s is None else f"after {phase.seen_s:.0f} s the first dashboard says"
        self._say(f"{trouble.title}, {node.name}: {seen}: {phase.text}")
        return phase

    def _judge(self, trouble: Trouble, phase: _Phase, due_s: float) -> None:
        said = "; ".join(map(str, phase.rows))
        wanted = f"{trouble.words!r} at {' '.join(trouble.places) or 'the node'}"
        if trouble.by_alert_alone:
            pass
        elif phase.seen_s is None:
            self._wrong(f"{trouble.name}: {wanted} was not on the first dashboard within {SEEN_S:g} s, but: {said}")
        elif phase.status_s is None or phase.status_s > SEEN_S + _SLACK_S:
            self._wrong(f"{trouble.name}: framegate status did not say {trouble.words!r} in time")
        if (phase.seen_s is not None or trouble.by_alert_alone) and (phase.fired_s is None or phase.fired_s > due_s):
            self._wrong(f"{trouble.name}: {phase.alert} did not fire within {due_s:.0f} s, but: {phase.fired_s}")
        if phase.ended_s is None:
            self._wrong(f"{trouble.name}: {phase.alert} goes on after the trouble has ended")
        pages = [one for one in phase.others if one.endswith("critical") and one.split()[0] not in trouble.besides]
        if pages:
            self._wrong(f"{trouble.name}: pages besides: {', '.join(pages)}")

    def _halt(self, node: Node) -> None:
        """When all is over, ``framegate status`` and the first dashboard say that nothing is wrong now; once control stood still, that too."""
        self._until_fine(self._nodes, "the end", status=True)
        os.kill(node.proxy.pid, signal.SIGSTOP)
        try:
            time.sleep(_HALTED_S)
        finally:
            os.kill(node.proxy.pid, signal.SIGCONT)
        time.sleep(3 * EXPORT_S)
        for _ in self._passing(2 * _HALTED_S):
            said = {*(row.problem for row in self._rows(node)), *node.steering.proxy().warnings} - {FINE}
            if any(not _is_expected(text) for text in said):
                self._wrong(f"after the control process stood still, it is said: {'; '.join(said)}")
                break
        text = node.framegate("status")
        if _STOOD_STILL not in text:
            self._wrong(f"framegate status does not say that the control process stood still: {text}")

    def _until_fine(self, nodes: Sequence[Node], name: str, *, status: bool = False) -> None:
        """Wait until the first dashboard, and ``framegate status``, have said for 3 s that everything is fine."""
        said: set[str] = set()
        fine_s = 0.0
        for passed in self._passing(_CALM_S):
            said = {row.problem for node in nodes for row in self._rows(node)} - {FINE} - _OF_THE_MACHINE - _LATELY
            if status:
                said |= {text for node in nodes for text in node.steering.proxy().warnings if not _is_expected(text)}
            if said:
                fine_s = passed
            elif passed - fine_s >= _STEADY_S:
                return
        self._wrong(f"{name}: {_CALM_S:g} s after its end the first dashboard says: {'; '.join(sorted(said))}")

    def _passing(self, seconds: float) -> Iterator[float]:
        """Seconds that have passed, every two, until so many have or the run has ended."""
        began = time.monotonic()
        while not self._over and (passed := time.monotonic() - began) < seconds:
            yield passed
            time.sleep(_LOOK_S)

    def _names(self, rows: Sequence[Row], trouble: Trouble) -> bool:
        return any(row.problem == trouble.words and all(place in row.place for place in trouble.places) for row in rows)

    def _rows(self, node: Node) -> list[Row]:
        """What the first dashboard says of a node now."""
        return panels.problems(self._boards[0], self._prometheus, self._window(node.name))

    def _firing(self, node: Node, chosen: str, over: str = "") -> list[str]:
        """Names and severities of alerts of a node that fire, or have fired."""
        labels = ", ".join(filter(None, (f'alertstate="firing", job="{self._job}", instance="{node.name}"', chosen)))
        query = f"last_over_time(ALERTS{{{labels}}}{over})" if over else f"ALERTS{{{labels}}}"
        found = self._prometheus.instant(f"count by (alertname, severity) ({query})", time.time())["result"]
        return [f"{row['metric']['alertname']} {row['metric']['severity']}" for row in found]

    def _table(self, phases: Sequence[_Phase]) -> None:
        """In the form of Markdown."""
        titles = ["trouble", "first panel after", "status after", "text", "alert", "fires after", "ends after", "others that fired"]
        for titled in (titles, ["---"] * len(titles)):
            self._say(f"| {' | '.join(titled)} |")
        for phase in phases:
            times = [f"{found:.0f} s" if found is not None else "never" for found in (phase.seen_s, phase.status_s, phase.fired_s, phase.ended_s)]
            cells = (phase.title, times[0], times[1], phase.text, phase.alert, times[2], times[3], ", ".join(phase.others))
            self._say(f"| {' | '.join(cells)} |")

    def _window(self, instance: str) -> Window:
        now, every = time.time(), f"{EXPORT_S}s"
        start = max(self._began, now - _SHOWN_S)
        chosen = {**dict.fromkeys(("pod", "listener", "upstream"), ".*"), "instance": instance, "job": self._job}
        times = {"interval": every, "__interval": every, "__rate_interval": f"{RATE_S}s", "__range": f"{max(1, round(now - start))}s"}
        return Window(start, now, {**chosen, **times})

    def _look(self, window: Window) -> Views:
        return {board.slug: {panel.id: panel.ask(self._prometheus, window) for panel in board.panels} for board in self._boards}

    def _check_panels(self) -> None:
        """A failed query is a fault in any phase; a panel without data is one if it has none in all phases and no text for that case."""
        asked, views = 0, self._views
        for board in self._boards:
            for panel in board.panels:
                seen = [views[name][board.slug][panel.id] for name in views]
                asked += len(seen)
                for fault in (one.fault for one in seen if one.fault):
                    self._wrong(f"{board.slug}: {panel.title}: {fault}")
                if panel.nothing is None and all(one.empty for one in seen):
                    self._wrong(f"{board.slug}: {panel.title}: no data, in calm and in every trouble")
        self._say(f"panels: {sum(len(board.panels) for board in self._boards)} on {len(self._boards)} dashboards, asked {asked} times")

    def _compare(self, window: Window) -> Comparison:
        """The names over OTLP and by the scrape, in this very run."""
        found = []
        for late_s in (0, 5):  # what begins at one moment may come by one way first
            otlp, scraped = (
                [row["metric"] for row in self._prometheus.instant(f"last_over_time({{{labels}}}[30s])", window.end + late_s)["result"]]
                for labels in (f'job="{job}", instance="{self._nodes[0].name}"' for job in (JOB, SCRAPE_JOB))
            )
            found.append(panels.compare(otlp, scraped))
        early, late = found
        both = (tuple(sorted(set(one) & set(other))) for one, other in ((early.only_otlp, late.only_otlp), (early.only_scrape, late.only_scrape)))
        compared = Comparison(early.both, *both)
        counts = f"by OTLP only: {len(compared.only_otlp)}; by the scrape only: {len(compared.only_scrape)}"
        self._say(f"series by both ways: {compared.both}; {counts}")
        for way, only in (("OTLP", compared.only_otlp), ("the scrape", compared.only_scrape)):
            names = sorted({text.partition(": ")[2].partition("{")[0] for text in only})
            if names:
                self._wrong(f"series by {way} only: {', '.join(names)}")
        return compared

    def _draw(self, phases: Sequence[_Phase], tools: Tools, folder: Path) -> None:
        """All dashboards in calm; of each trouble the first one, and of the first trouble the one about who hurts."""
        reason = tools.no_pictures()
        if reason is not None or tools.browser is None or tools.page is None:
            self._say(f"pictures: not drawn: {reason}")
            return
        done: list[concurrent.futures.Future[None]] = []
        drawn = {"calm": panels.SLUGS, TROUBLES[0].name: ("healthy", "hurts")}
        wanted = [(phase, board) for phase in phases for board in self._boards if board.slug in drawn.get(phase.name, ("healthy",))]
        with (
            Waiting(self._console, f"drawing {len(wanted)} pictures", lambda: f"{sum(one.done() for one in done)} drawn"),
            concurrent.futures.ThreadPoolExecutor(_DRAWN_AT_ONCE) as threads,
        ):
            for phase, board in wanted:
                target, seen = folder / f"{board.slug}-{phase.name}.png", self._views[phase.name][board.slug]
                done.append(threads.submit(draw, tools.browser, tools.page, target, board, seen, phase.window, phase.title))
            try:
                concurrent.futures.wait(done)
            finally:
                threads.shutdown(wait=False, cancel_futures=True)  # when it is interrupted
        for one in done:
            error = one.exception()
            if isinstance(error, PictureError):
                self._wrong(f"pictures: {error}")
            elif error is not None:
                raise error
        self._say(f"pictures and troubles.json: {folder}")


def _text(rows: Sequence[Row], words: str) -> str:
    """The problem of these words with its places, then others that are not the machine's; all problems where these words are not among them."""
    places = [row.place for row in rows if row.problem == words]
    if not places:
        return "; ".join(map(str, rows))
    others = dict.fromkeys(row.problem for row in rows if row.problem not in {words, *_OF_THE_MACHINE})
    return "; ".join((f"{words} ({', '.join(filter(None, places))})".removesuffix(" ()"), *others))


def _is_expected(text: str) -> bool:
    return any(words in text for words in _OF_THE_MACHINE | _LATELY)
