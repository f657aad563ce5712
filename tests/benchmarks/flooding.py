"""Part `flood`: what calls that the API refuses cost the traffic and other callers. As a program it is one such client: `ADDRESS KIND`."""

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import grpc

from framegate.control.v1 import channel_service_pb2, channel_service_pb2_grpc, proxy_service_pb2, proxy_service_pb2_grpc

if TYPE_CHECKING:
    from candidates import Framegate
    from measure import Round
    from stage import Stage

OUTSTANDING = 200
CONNECTIONS = 8
FRAMES_PER_SECOND = 2_000
PAUSE_S = 0.005
BOUND = 1.2
QUIET = "nothing"
AGAIN = "nothing, again"
KINDS = ("no role", "too many", "too large", "unknown method")


@dataclass(slots=True)
class Outcome:
    """The traffic, and how long each GetProxy of another caller took, in ms, by round beside one kind of refused calls; how many were refused."""

    kind: str
    traffic: "list[Round]" = field(default_factory=list)
    calls_ms: list[list[float]] = field(default_factory=list)
    refusals: int = 0

    @property
    def frame_p99s_us(self) -> list[float]:
        """Of the traffic, by round."""
        return [row.p99_us for row in self.traffic]

    @property
    def call_p99s_ms(self) -> list[float]:
        """Of GetProxy, by round."""
        return [statistics.quantiles(calls, n=100)[-1] for calls in self.calls_ms]


def run(stage: "Stage") -> dict[str, object]:
    """One framegate with traffic, on every core, beside each kind of refused calls in turn, and twice beside nothing: that ratio is the noise."""
    from shapes import Load, Shape

    load, wide = Load(Shape("100x1", 100, 1, 50)), stage.on_all_cores()
    outcomes = {kind: Outcome(kind) for kind in (QUIET, *KINDS, AGAIN)}
    with wide.framegate(load, "framegate-flooded") as candidate:
        for number in range(stage.rounds):
            for outcome in outcomes.values():
                with _flood(candidate, outcome), _asked(candidate, outcome):
                    outcome.traffic.append(replace(wide.generator, warm_up=1.0).run(candidate, load, number, FRAMES_PER_SECOND))
    quiet, lines = outcomes[QUIET], []
    for kind, outcome in outcomes.items():
        frames, calls = _ratio(outcome.frame_p99s_us, quiet.frame_p99s_us), _ratio(outcome.call_p99s_ms, quiet.call_p99s_ms)
        words = f"{'≤' if max(frames, calls) <= BOUND else 'ABOVE'} {BOUND}" if kind in KINDS else ""
        p99_us, p99_ms = statistics.median(outcome.frame_p99s_us), statistics.median(outcome.call_p99s_ms)
        lines.append((kind, str(outcome.refusals), f"{p99_us:,.0f}", f"{frames:.2f}", f"{p99_ms:.1f}", f"{calls:.2f}", words))
    columns = ("beside", "refusals", "frames p99 µs", "÷ quiet", "GetProxy p99 ms", "÷ quiet", "bound")
    stage.table(f"{FRAMES_PER_SECOND:,} frames/s on 50 connections beside {OUTSTANDING} outstanding calls that are refused", columns, lines)
    return {"outcomes": [asdict(outcome) for outcome in outcomes.values()]}


def _ratio(values: list[float], quiet: list[float]) -> float:
    """The median of the rounds' ratios: what slows the whole machine for a while is in both."""
    return statistics.median(value / beside for value, beside in zip(values, quiet, strict=True))


@contextmanager
def _flood(candidate: "Framegate", outcome: Outcome) -> Iterator[None]:
    """Keep refused calls outstanding, from a process that runs when nobody else does: what it takes itself is not the question."""
    if outcome.kind not in KINDS:
        yield
        return
    command = [sys.executable, __file__, f"{candidate.admin}.view", outcome.kind]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=_everywhere)
    assert client.stdout is not None, "a pipe"
    try:
        client.stdout.readline()
        yield
        outcome.refusals += int(client.communicate("\n", timeout=30)[0])
    finally:
        client.kill()
        client.wait()


def _everywhere() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def _asked(candidate: "Framegate", outcome: Outcome) -> Iterator[None]:
    """Another caller, of another role, calls GetProxy again and again."""
    stop = threading.Event()
    calls_ms = list[float]()
    outcome.calls_ms.append(calls_ms)

    def ask() -> None:
        with grpc.insecure_channel(candidate.admin) as channel:
            stub = proxy_service_pb2_grpc.ProxyServiceStub(channel)
            stub.GetProxy(proxy_service_pb2.GetProxyRequest(), timeout=30)
            while not stop.wait(PAUSE_S):
                begun = time.perf_counter()
                stub.GetProxy(proxy_service_pb2.GetProxyRequest(), timeout=30)
                calls_ms.append((time.perf_counter() - begun) * 1e3)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def _client(address: str, kind: str) -> int:
    """Keep calls outstanding until a line is read; how many were refused."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    refused = 0

    async def call(channel: Any) -> None:
        nonlocal refused
        stub = channel_service_pb2_grpc.ChannelServiceStub(channel)
        listed = channel_service_pb2.ListChannelsRequest()
        if kind == "too large":
            listed.filter = "x" * (2 << 20)
        while True:
            try:
                if kind == "no role":
                    await stub.MuteChannels(channel_service_pb2.MuteChannelsRequest(reason="bench"))
                elif kind == "too many":  # those in progress wait for a request that does not come
                    await channel.stream_unary("/framegate.control.v1.ChannelService/ListChannels")()
                elif kind == "unknown method":
                    await channel.unary_unary("/framegate.control.v1.ChannelService/Unknown")(b"")
                else:
                    await stub.ListChannels(listed)
            except grpc.aio.AioRpcError:
                refused += 1

    channels = [grpc.aio.insecure_channel(address, options) for _ in range(CONNECTIONS)]
    tasks = [asyncio.create_task(call(channels[number % CONNECTIONS])) for number in range(OUTSTANDING)]
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return refused


if __name__ == "__main__":
    print(asyncio.run(_client(*sys.argv[1:])))
