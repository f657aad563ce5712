"""``framegate demo``: starts everything, lets the load run, stops everything in order, and compares the counts."""

import functools
import importlib.util
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from framegate.control.demo import report
from framegate.control.demo.ending import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MISSING, EXIT_OK, conclude, ended, exit_code, program
from framegate.control.demo.processes import JAVA_VERSION, Child, ChildError, find_java
from framegate.control.demo.stage import Serving, Stage, Workspace
from framegate.control.demo.steering import Metrics, Steering
from framegate.control.demo.steps import Steps
from framegate.control.demo.view import Reading, View, Waiting, say
from framegate.proxy.tap.completeness import verify

_POOL_SIZE: Final = 64 * 1024 * 1024
_REFRESH_S: Final = 0.25
_SETTLE_S: Final = 10.0
_FINISH_S: Final = 45.0
_FIRST_RATE: Final = 200
_FIRST_BATCH_S: Final = 60.0


def run(seconds: float = 60.0, rate: int = 20_000, connections: int = 32, directory: Path | None = None) -> int:
    """Run a demo to its report.

    Args:
        seconds: how long the load runs, without start, drain and report.
        rate: frames per second over all connections, each answered.
        connections: of the load, at once.
        directory: the folder of the run: new, empty or an earlier demo's. None: a folder for temporary files.

    Returns: 0: everything was equal and seen; 1: something was not, or failed; 2: something is missing on this machine, nothing was started; 130:
    Ctrl-C ended it, or the load; 143: SIGTERM.
    """
    absent = missing("pyspark", "pyarrow")
    if absent:
        return ended(absent, EXIT_MISSING)

    def perform() -> int:
        with Stage(Workspace(directory)) as stage:
            return _Demo(stage, seconds, rate, connections).perform()

    return exit_code(perform)


def missing(*modules: str) -> str | None:
    """What this machine lacks of Java and the modules, in one line; None when it has everything."""
    if find_java() is None:
        return f"Spark needs Java {JAVA_VERSION} or newer; install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}; install framegate[spark,kafka]" if absent else None


class _Demo:
    """One run, with what ``run`` was told."""

    def __init__(self, stage: Stage, seconds: float, rate: int, connections: int) -> None:
        self._stage = stage
        self._seconds, self._rate, self._connections = seconds, rate, connections
        self._console = Console()
        self._waiting = functools.partial(Waiting, self._console)
        self._latest: dict[str, Any] = {}
        self._interrupted = False

    def perform(self) -> int:
        stage = self._stage
        stage.start_pipeline()  # first: Spark takes longest
        with self._waiting("starting: upstream (a handler in a framegate of its own), proxy with two processors"):
            serving = stage.start_proxy(f"127.0.0.1:{stage.start_upstream()}", expected_frames=int(2 * self._rate * self._seconds))
        say(self._console, f"  proxy on 127.0.0.1:{serving.port} (TLS); steer it too: {program()} channels list --address {serving.admin}")
        generator = self._start_load(serving)
        with Steering(serving.admin, "demo") as steering:
            steps = self._watch(generator, steering)
            with self._waiting("stopping the load: every answer is waited for"):
                generator.ask("stop")
                final = generator.wait_for_event("final", _FINISH_S)
                generator.wait(_SETTLE_S)
                metrics = self._settle(steering, serving)
        with self._waiting("stopping the proxy, and counting the tap's log"):
            proxy_code = stage.stop_proxy()
            counted, log, verdict = stage.stop_upstream(), stage.count_log(), verify(str(stage.workspace.tap))
        with self._waiting("stopping Spark, once it has read the log", lambda: f"{stage.table_rows():,} of {log.total:,} frames"):
            stage.drain_pipeline()
        with self._waiting("asking Spark SQL for every frame's checksum and place"):
            tables = stage.ask_tables(report.CONTENT_QUERIES)
        evidence = report.Evidence(generator=final, upstream=counted, metrics=metrics, log=log, verdict=verdict, tables=tables, refused=steps.refused)
        self._print_counts(evidence)
        ended_well = report.Check(f"the proxy stopped cleanly (exit code {proxy_code})", proxy_code == 0)
        good = conclude(self._console, stage.workspace, [*report.checks(evidence), *steps.checks(), ended_well], self._latency(final))
        return EXIT_INTERRUPTED if self._interrupted else EXIT_OK if good else EXIT_FAILED

    def _start_load(self, serving: Serving) -> Child:
        """Start the generator with a low rate, so that Spark's first batch, which is slow whatever its size, is done when the load begins."""
        stage = self._stage
        options: dict[str, Any] = {"port": serving.port, "rate": self._rate, "connections": self._connections}
        options["first_rate"] = min(_FIRST_RATE, self._rate)
        options["ca"] = str(stage.certificates.ca)
        generator = stage.start_module("framegate.control.demo.generator", json.dumps(options), on_row=self._on_row)
        with self._waiting("starting Spark"):
            stage.wait_for_spark()
        with self._waiting(f"waiting for Spark's first batch, of a trickle of {_FIRST_RATE} frames/s"):
            stage.wait_for_rows(1, _FIRST_BATCH_S)
        generator.ask("load")
        return generator

    def _watch(self, generator: Child, steering: Steering) -> Steps:
        """Show the state and perform the steps until the time is over, or until an interrupt."""
        view = View(self._console, self._seconds)
        steps = Steps(steering, generator, _POOL_SIZE, view.note)
        script = steps.script()
        due = [self._seconds * (number + 1) / (len(script) + 2) for number in range(len(script))]
        step: threading.Thread | None = None
        started = time.monotonic()
        try:
            while (elapsed := time.monotonic() - started) < self._seconds or script or (step is not None and step.is_alive()):
                if script and elapsed >= due[-len(script)] and (step is None or not step.is_alive()):
                    step = threading.Thread(target=script.pop(0), name="step", daemon=True)
                    step.start()
                view.show(self._reading(elapsed))
                for child in self._stage.children:
                    if not child.running:
                        raise ChildError(f"{child.name} ended: {child.tail()}")
                time.sleep(_REFRESH_S)
        except KeyboardInterrupt:
            self._interrupted = True
            view.note("interrupted: the load ends here; once more to give up")
            if step is not None:
                step.join()
            steps.skip()
        view.show(self._reading(time.monotonic() - started))
        return steps

    def _settle(self, steering: Steering, serving: Serving) -> Metrics:
        """The proxy's metrics, once it has no connection and the tap has written what it matched."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            metrics = Metrics.scrape(serving.prometheus)
            written = metrics.sum("framegate_tap_matched_total") == metrics.sum("framegate_tap_flushed_total")
            if (written and steering.proxy().open_connection_count == 0) or time.monotonic() > deadline:
                return metrics
            time.sleep(0.1)

    def _reading(self, elapsed_s: float) -> Reading:
        row = self._latest
        frames, size = (row.get("sent" + what, 0) + row.get("answered" + what, 0) for what in ("", "_bytes"))
        return Reading(elapsed_s, row.get("connections", 0), frames, size, self._stage.table_rows())

    def _on_row(self, row: dict[str, Any]) -> None:
        if row["event"] == "stats":
            self._latest = row

    def _print_counts(self, evidence: report.Evidence) -> None:
        table = Table("counted by", title="Frames, as each part counted them", title_justify="left")
        for name in ("requests", "answers"):
            table.add_column(name, justify="right")
        for counts in report.counts(evidence):
            table.add_row(counts.who, f"{counts.request:,}", f"{counts.response:,}")
        self._console.print(table)

    def _latency(self, final: Mapping[str, Any]) -> Iterator[str]:
        for phase, text in (("steady", "latency, from a client's send to its answer"), ("steps", "the same while a step held something back")):
            times = final["latency"][phase]
            if times["frames"]:
                yield f"{text}: p50 {times['p50_us'] / 1000:.2f} ms, p99 {times['p99_us'] / 1000:.2f} ms ({times['frames']:,} frames)"
        if final["held_back_ms"] > 1000:
            rate = final["paced"] / max(1, final["paced_ms"]) * 1000
            yield f"this machine carried {rate:,.0f} frames/s of the {self._rate:,} asked for; try a lower --rate"
