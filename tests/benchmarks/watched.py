"""Part `telemetry`: what it costs to be watched: ten shapes with and without, and scrapes of 64 processors beside newcomers."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace

import grpc
from candidates import Candidate, Framegate
from figures import Figure, add
from measure import Round
from shapes import SHAPES, Load
from stage import Stage, in_turn
from variants import FramegateSixtyFour, FramegateUnwatched, FramegateWatched

__all__ = ["run"]

EVERY_S = 10.0
"""What `telemetry.otlp.interval` is by default; Prometheus' own default for scrapes is 15 s or a minute."""
SERVICES = ("metrics.v1.MetricsService", "trace.v1.TraceService", "logs.v1.LogsService")
COST = 1.01
SCRAPE_MS = 100.0
PAUSE_MS = 2.0
NEWCOMERS = 400
SPACING_S = 0.005
FRAME = b"\0\0\0\x04echo"


def run(stage: Stage) -> dict[str, object]:
    """Both; the raw rounds, and what is judged."""
    rounds: list[Round] = []
    figures = []
    with _collector() as endpoint:
        FramegateWatched.endpoint = endpoint
        for load in (Load(shape, tls) for tls in (False, True) for shape in SHAPES):
            rows = _beside(stage, load)
            rounds += rows
            figures.append(_cost(load, rows))
    return add({"rounds": [asdict(row) for row in rounds]}, [*figures, *_scrapes(stage)])


@contextmanager
def _collector() -> Iterator[str]:
    """What takes every export, and looks at none."""
    server = grpc.server(ThreadPoolExecutor(1))
    taken: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    for service in SERVICES:
        name = f"opentelemetry.proto.collector.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": taken}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _beside(stage: Stage, load: Load) -> list[Round]:
    """Rounds as long as the time between two exports, so that one export and one scrape fall into each."""
    generator = replace(stage.generator, seconds=EVERY_S)
    with stage.all_started(load, (FramegateUnwatched.name, FramegateWatched.name)) as candidates:
        for candidate in candidates:
            stage.generator.run(candidate, load, -1)  # whose memory the kernel has given once is cheaper

        def measure(candidate: Candidate, number: int) -> Round:
            with _scraped(candidate):
                return generator.run(candidate, load, number)

        return in_turn(candidates, stage.rounds, measure)


@contextmanager
def _scraped(candidate: Candidate) -> Iterator[None]:
    """One scrape amid what is measured, of who can be scraped."""
    timer = threading.Timer(EVERY_S / 2, candidate.metrics if isinstance(candidate, FramegateWatched) else lambda: "")
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _cost(load: Load, rows: Sequence[Round]) -> Figure:
    without, watched = (
        statistics.median(row.cpu_us_per_frame for row in rows if row.candidate == name) for name in (FramegateUnwatched.name, FramegateWatched.name)
    )
    note = f"{watched:.3f} µs/frame, {without:.3f} without telemetry"
    return Figure(f"telemetry, {load.title}", f"≤ {COST} × without", watched / without, "×", {}, watched <= COST * without, note)


def _scrapes(stage: Stage) -> list[Figure]:
    """How long a scrape of 64 processors takes, and what newcomers feel of it, whom the same process accepts."""
    wide = stage.on_all_cores()
    with wide.all_started(Load(SHAPES[0]), (FramegateSixtyFour.name,)) as candidates:
        candidate = candidates[0]
        assert isinstance(candidate, Framegate), "that is what was asked for"
        candidate.metrics()  # the first one loads what answers
        calm = _newcomers(candidate)
        times: list[float] = []
        done = threading.Event()
        scraping = threading.Thread(target=_scrape, args=(candidate, times, done))
        scraping.start()
        try:
            disturbed = _newcomers(candidate)
        finally:
            done.set()
            scraping.join()
        size = len(candidate.metrics())
    scrape, pause = statistics.median(times), _p99(disturbed) - _p99(calm)
    note = f"{len(times)} scrapes of {size:,} bytes, slowest {max(times):.1f} ms"
    felt = f"p50, p99, slowest {_words(disturbed)} ms; without scrapes {_words(calm)}"
    return [
        Figure("a scrape of 64 processors", f"≤ {SCRAPE_MS:.0f} ms", scrape, "ms", {}, scrape <= SCRAPE_MS, note),
        Figure("a newcomer's first frame, p99, beside scrapes: later by", f"≤ {PAUSE_MS:.0f} ms", pause, "ms", {}, pause <= PAUSE_MS, felt),
    ]


def _scrape(candidate: Framegate, times: list[float], done: threading.Event) -> None:
    while not done.is_set():
        begun = time.monotonic()
        candidate.metrics()
        times.append((time.monotonic() - begun) * 1e3)
        done.wait(0.05)


def _newcomers(candidate: Framegate) -> list[float]:
    """Milliseconds from the connect of each to its first echoed frame."""
    times = []
    for _ in range(NEWCOMERS):
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", candidate.port), timeout=5) as sock:
            sock.sendall(FRAME)
            got = b""
            while len(got) < len(FRAME) and (data := sock.recv(len(FRAME) - len(got))):
                got += data
        if got != FRAME:
            raise RuntimeError(f"a newcomer got {got!r} back")
        times.append((time.monotonic() - begun) * 1e3)
        time.sleep(SPACING_S)
    return sorted(times)


def _p99(times: Sequence[float]) -> float:
    return times[len(times) * 99 // 100]


def _words(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f}, {_p99(times):.2f}, {times[-1]:.2f}"
