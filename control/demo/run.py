"""``framegate demo``: sets everything up, lets it run, ends it in order, compares what was counted."""

import dataclasses
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import grpc
from rich.console import Console
from rich.table import Table

from control.demo import broker, report
from control.demo.acts import Act, Acts
from control.demo.closing import print_closing
from control.demo.java import MINIMUM_VERSION, find_java
from control.demo.metrics import Metrics
from control.demo.processes import Child, ChildError
from control.demo.program import program
from control.demo.signals import EXIT_INTERRUPTED, EXIT_TERMINATED, TerminatedError, sigterm_raises
from control.demo.stage import Serving, Stage
from control.demo.steering import Steering
from control.demo.view import Reading, View
from control.demo.waiting import Waiting
from control.demo.workspace import Workspace, WorkspaceError

__all__ = ["EXIT_FAILED", "EXIT_MISSING", "EXIT_OK", "Upstream", "run"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_MISSING: Final = 2

Upstream = Literal["framed", "kafka"]
_FOLDERS: Final[dict[Upstream, str]] = {"framed": "framegate-demo", "kafka": "framegate-demo-kafka"}

_POOL_SIZE: Final = 64 * 1024 * 1024
_REFRESH_S: Final = 0.25
_SETTLE_S: Final = 10.0
_FINISH_S: Final = 45.0
_FIRST_RATE: Final = 200
_FIRST_BATCH_S: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    seconds: float
    rate: int
    connections: int
    plain_view: bool


def run(
    seconds: float = 60.0,
    rate: int = 20_000,
    connections: int = 32,
    upstream: Upstream = "framed",
    directory: Path | None = None,
    plain_view: bool = False,
) -> int:
    """Run a demo to its report.

    Args:
        seconds: how long the load runs; start, drain and report come on top.
        rate: frames per second over all connections, each answered.
        connections: of the load, at once.
        upstream: ``framed`` is built in; ``kafka`` starts a real broker (rate and connections do not apply).
        directory: where everything lies; new, empty or an earlier demo's. None: a folder for temporary files.
        plain_view: lines instead of a live view, even on a terminal.

    Returns:
        0: everything was equal and seen; 1: something was not, or failed; 2: something is missing on this machine, nothing was started; 130: Ctrl-C
        ended it, or the load; 143: SIGTERM.
    """
    missing = _missing(upstream)
    if missing:
        print(f"framegate demo: {missing}", file=sys.stderr)
        return EXIT_MISSING
    console = Console()
    try:
        with sigterm_raises(), Stage(Workspace(directory, _FOLDERS[upstream])) as stage:
            if upstream == "kafka":
                from control.demo import kafka  # its clients are an extra

                return EXIT_OK if kafka.perform(stage, console, plain=plain_view) else EXIT_FAILED
            load = _Load(seconds=seconds, rate=rate, connections=connections, plain_view=plain_view)
            demo = _FramedDemo(stage, console, load)
            good = demo.perform()
            return EXIT_INTERRUPTED if demo.interrupted else EXIT_OK if good else EXIT_FAILED
    except WorkspaceError as error:
        return _say(str(error), EXIT_MISSING)
    except (ChildError, broker.BrokerError, grpc.RpcError, OSError) as error:
        return _say(" ".join(str(error).split()), EXIT_FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", EXIT_INTERRUPTED)
    except TerminatedError:
        return _say("terminated", EXIT_TERMINATED)


def _say(text: str, code: int) -> int:
    """One line for a person; the exit code that goes with it."""
    print(f"framegate demo: {text}", file=sys.stderr)
    return code


def _missing(upstream: Upstream) -> str | None:
    """What this machine lacks, in one line; None when it has everything."""
    if find_java() is None:
        return f"Spark needs Java {MINIMUM_VERSION} or newer; install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    wanted = ["pyspark", "pyarrow", *(["confluent_kafka"] if upstream == "kafka" else [])]
    absent = [name for name in wanted if importlib.util.find_spec(name) is None]
    if absent:
        return f"needs {', '.join(absent)}; install framegate[spark,kafka]"
    tools = broker.missing_tools() if upstream == "kafka" else []
    return f"needs {' and '.join(tools)}" if tools else None


class _FramedDemo:
    """The demo with the built-in upstream."""

    def __init__(self, stage: Stage, console: Console, load: _Load) -> None:
        self._stage = stage
        self._console = console
        self._load = load
        self._latest: dict[str, Any] = {}
        self.interrupted = False

    def perform(self) -> bool:
        """The whole demo; whether everything was equal and seen."""
        stage = self._stage
        stage.start_pipeline()  # first: Spark takes longest
        with self._waiting("starting: upstream (a handler in a framegate of its own), proxy with two processors"):
            serving = stage.start_proxy(f"127.0.0.1:{stage.start_upstream()}", expected_frames=int(2 * self._load.rate * self._load.seconds))
        self._say(f"  proxy on 127.0.0.1:{serving.port} (TLS); steer it too: {program()} channels list --address {serving.admin}")
        generator = self._start_load(serving)
        with Steering(serving.admin, "demo") as steering:
            acts = self._watch(generator, steering)
            with self._waiting("stopping the load: every answer is waited for"):
                final = self._stop_load(generator)
                metrics = self._settle(steering, serving)
        with self._waiting("stopping the proxy, and counting the tap's log"):
            proxy_code = stage.stop_proxy()
            counted = stage.stop_upstream()
            log = stage.count_log()
            verdict = stage.verify_log()
        with self._waiting("stopping Spark, once it has read the log", lambda: f"{stage.table_rows():,} of {log.total:,} frames"):
            stage.drain_pipeline(log.total)
        with self._waiting("asking Spark SQL for every frame's checksum and place"):
            tables = stage.ask_tables(report.CONTENT_QUERIES)
        evidence = report.Evidence(generator=final, upstream=counted, metrics=metrics, log=log, verdict=verdict, tables=tables, refused=acts.refused)
        return self._print_report(evidence, acts.done, proxy_code)

    def _start_load(self, serving: Serving) -> Child:
        """Start the generator with a trickle, so that Spark's first batch, which is slow whatever is in it, is behind when the load begins."""
        load, stage = self._load, self._stage
        options = {"port": serving.port, "rate": load.rate, "first_rate": min(_FIRST_RATE, load.rate), "connections": load.connections}
        arguments = json.dumps({**options, "ca": str(stage.certificates.ca)})
        generator = stage.start_module("control.demo.generator", arguments, on_row=self._on_row)
        with self._waiting("starting Spark"):
            stage.wait_for_spark()
        with self._waiting(f"waiting for Spark's first batch, of a trickle of {_FIRST_RATE} frames/s"):
            stage.wait_for_rows(1, _FIRST_BATCH_S)
        generator.ask("load")
        return generator

    def _waiting(self, text: str, detail: Callable[[], str] | None = None) -> Waiting:
        return Waiting(self._console, text, detail, plain=self._load.plain_view)

    def _watch(self, generator: Child, steering: Steering) -> Acts:
        """Show what happens and perform the acts until the time is over; an interrupt ends the time."""
        load = self._load
        with View(self._console, load.seconds, plain=load.plain_view) as view:
            acts = Acts(steering, generator, _POOL_SIZE, view.note)
            script = acts.script()
            due = [load.seconds * (number + 1) / (len(script) + 2) for number in range(len(script))]
            act: threading.Thread | None = None
            started = time.monotonic()
            try:
                while (elapsed := time.monotonic() - started) < load.seconds or script or (act is not None and act.is_alive()):
                    if script and elapsed >= due[-len(script)] and (act is None or not act.is_alive()):
                        act = threading.Thread(target=script.pop(0), name="act", daemon=True)
                        act.start()
                    view.show(self._reading(elapsed))
                    self._check_children()
                    time.sleep(_REFRESH_S)
            except KeyboardInterrupt:
                self.interrupted = True
                view.note("interrupted: the load ends here; once more to give up")
                if act is not None:
                    act.join()
                acts.skip()
            view.show(self._reading(time.monotonic() - started))
        return acts

    def _stop_load(self, generator: Child) -> dict[str, Any]:
        """The generator's final row, once every answer is there and every connection has ended."""
        generator.ask("stop")
        final = generator.wait_for_event("final", _FINISH_S)
        generator.wait(_SETTLE_S)
        return final

    def _settle(self, steering: Steering, serving: Serving) -> Metrics:
        """The proxy's metrics, once it has no connection and the tap has written what it matched."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            metrics = Metrics.scrape(serving.prometheus)
            written = metrics.sum("framegate_tap_matched_total") == metrics.sum("framegate_tap_flushed_total")
            if (written and steering.open_connection_count() == 0) or time.monotonic() > deadline:
                return metrics
            time.sleep(0.1)

    def _reading(self, elapsed_s: float) -> Reading:
        row = self._latest
        return Reading(
            elapsed_s=elapsed_s,
            connections=row.get("connections", 0),
            frames=row.get("sent", 0) + row.get("answered", 0),
            bytes=row.get("sent_bytes", 0) + row.get("answered_bytes", 0),
            rows=self._stage.table_rows(),
        )

    def _check_children(self) -> None:
        for child in self._stage.children:
            if not child.running:
                raise ChildError(f"{child.name} ended: {child.tail()}")

    def _on_row(self, row: dict[str, Any]) -> None:
        if row["event"] == "stats":
            self._latest = row

    def _print_report(self, evidence: report.Evidence, acts: list[Act], proxy_code: int) -> bool:
        table = Table(title="Frames, as each part counted them", title_justify="left")
        table.add_column("counted by")
        table.add_column("requests", justify="right")
        table.add_column("answers", justify="right")
        for counts in report.counts(evidence):
            table.add_row(counts.who, f"{counts.request:,}", f"{counts.response:,}")
        self._console.print(table)
        checks = [
            *report.checks(evidence),
            *(report.Check(self._act_text(act), act.failure is None) for act in acts),
            report.Check(f"the proxy stopped cleanly (exit code {proxy_code})", proxy_code == 0),
        ]
        for check in checks:
            self._say(f"{'ok   ' if check.good else 'WRONG'} {check.text}")
        self._print_latency(evidence.generator)
        good = all(check.good for check in checks)
        print_closing(self._console, self._stage, good=good, again="--upstream kafka")
        return good

    def _act_text(self, act: Act) -> str:
        seen = "; ".join(act.seen)
        return f"{act.title}: {seen}" if act.failure is None else f"{act.title}: {seen}; NOT SEEN: {act.failure}"

    def _print_latency(self, final: Mapping[str, Any]) -> None:
        for phase, text in (("steady", "latency, from a client's send to its answer"), ("acts", "the same while an act held something back")):
            times = final["latency"][phase]
            if times["frames"]:
                self._say(f"{text}: p50 {times['p50_us'] / 1000:.2f} ms, p99 {times['p99_us'] / 1000:.2f} ms ({times['frames']:,} frames)")
        rate = final["paced"] / max(1, final["paced_ms"]) * 1000
        if final["held_back_ms"] > 1000:
            self._say(f"this machine carried {rate:,.0f} frames/s of the {self._load.rate:,} asked for; try a lower --rate")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
