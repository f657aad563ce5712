"""A real processor process over real sockets: everything control relies on."""

import contextlib
import dataclasses
import signal
import socket
import time

import pytest

from framegate.proxy.cells import HistogramValue, State
from framegate.proxy.config.model import MIB, DrainConfig, ListenerConfig, MemoryPoolConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig
from framegate.proxy.server.link import MAX_FRAME
from tests.fakes.server import ServerProcess, echo_bytes, receive_all
from tests.fakes.tap_files import stored
from tests.fakes.upstream import ScriptedUpstream, frame, read_exactly
from tests.fakes.waiting import until
from tests.proxy.conftest import builder

pytestmark = pytest.mark.slow


@pytest.fixture
def config():
    echo = ScriptedUpstream(echo_bytes)
    yield ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="plain", address="0.0.0.0:0", upstream="u", max_receive_size=MIB),),
        upstreams=(UpstreamConfig(name="u", endpoints=(f"127.0.0.1:{echo.port}",)),),
        memory_pool=MemoryPoolConfig(size=16 * MIB),
        drain=DrainConfig(timeout_ms=3000, quiet_ms=100),
    )
    echo.close()


@pytest.fixture
def launch():
    with builder(ServerProcess) as build:
        yield build


def exchange(client: socket.socket, body: bytes) -> None:
    client.sendall(frame(body))
    assert read_exactly(client, 4 + len(body)) == frame(body)


def durations(process: ServerProcess, name: str) -> dict[str, int]:
    """How many a histogram counts, by its last label."""
    found = {at[-1][1]: value for (metric, at), value in process.cells.snapshot().items() if metric.name == name}
    return {label: value.count for label, value in found.items() if isinstance(value, HistogramValue)}


def test_a_processor_names_its_modules_returns_frames_and_counts_them_in_rows_and_cells(config, launch):
    process = launch(config)
    modules = process.ready["modules"]
    assert {f"framegate.proxy.{name}" for name in ("network.channel", "relay.pair", "server.loop", "tap.writer")} <= set(modules)
    assert all(name.startswith("framegate.proxy.") for name in modules)
    assert process.ready["pid"] == process.popen.pid == process.cells.pid
    assert (process.cells.generation, process.cells.state) == (5, State.SERVING)
    client = process.connect()
    for size in (0, 1, 100, 70_000):
        exchange(client, b"x" * size)
    rows = process.ask("list", after=0, limit=10, listener=None)["rows"]
    assert [(row["state"], row["frames"]) for row in rows] == [("open", {"request": 4, "response": 4})]
    assert process.ask("describe", connection=rows[0]["id"])["row"]["peer"] == "192.0.2.1:999"
    until(lambda: process.cells.cell("framegate.frame.count", "downstream", "transmit", "plain") == 4)
    assert durations(process, "framegate.frame.forward.duration") == {"request": 4, "response": 4}
    assert process.cells.cell("framegate.event_loop.polls") >= 4
    client.close()
    row = process.notice("closed")["row"]
    assert (row["id"], row["cause"], row["lost"]["bytes"]) == (rows[0]["id"], "peer_closed", 0)
    until(lambda: process.cells.cell("framegate.connection.closed", "plain", "peer_closed", "downstream") == 1)
    assert process.cells.cell("framegate.connection.active", "downstream", "plain") == 0


@pytest.mark.parametrize("kind", ["bounded", "unbounded", "leak_finding"])
def test_the_pool_is_of_the_kind_that_is_configured(config, launch, kind):
    """Three frames of 600 KiB are begun and not finished; the pool is of 1 MiB. Only one that is unbounded holds all of them."""
    process = launch(dataclasses.replace(config, memory_pool=MemoryPoolConfig(size=MIB, kind=kind)))
    begun = [process.connect() for _ in range(3)]
    data = frame(bytes(700_000))
    for client in begun:
        client.setblocking(False)
    left = [memoryview(data)[:600_000] for _ in begun]

    def send() -> None:
        for index, client in enumerate(begun):
            with contextlib.suppress(BlockingIOError):
                left[index] = left[index][client.send(left[index]) :] if left[index] else left[index]

    def value(name: str, *words: str) -> int:
        send()
        return process.cells.cell(f"framegate.memory_pool.{name}", "frames", *words)

    if kind == "unbounded":
        until(lambda: value("usage", "begun") >= 1_800_000)
        assert (value("waiting"), value("depleted.count"), value("depleted.time")) == (0, 0, 0)
    else:
        until(lambda: value("waiting") != 0)
        assert value("usage", "begun") < 1_800_000
    for index, client in enumerate(begun):
        client.setblocking(True)
        client.sendall(bytes(left[index]) + data[600_000:])
        client.close()
    until(lambda: value("usage", "begun") == value("waiting") == 0)
    assert value("usage.max") >= 600_000
    assert (value("depleted.count") == 0) is (kind == "unbounded")
    assert (process.cells.cell("framegate.processor.errors", "pool"), process.cells.cell("framegate.processor.errors", "channel")) == (0, 0)


def test_cells_are_published_soon(config, launch):
    process = launch(config)
    client = process.connect()
    exchange(client, b"x")
    delays = []
    for number in range(2, 12):
        client.sendall(frame(b"y"))
        read_exactly(client, 5)
        begun = time.monotonic()
        until(lambda number=number: process.cells.cell("framegate.frame.count", "downstream", "transmit", "plain") == number)
        delays.append(time.monotonic() - begun)
    assert sorted(delays)[2] < 0.01


def test_sigterm_drains_and_exits_and_sigint_does_nothing(config, launch):
    process = launch(config)
    client = process.connect()
    exchange(client, b"x")
    process.popen.send_signal(signal.SIGINT)
    exchange(client, b"y")
    process.popen.send_signal(signal.SIGTERM)
    assert receive_all(client) == b""
    client.close()
    assert process.notice("closed")["row"]["cause"] == "drained"
    assert process.wait() == 0
    assert process.cells.state == State.STOPPED


def test_the_end_of_the_link_ends_it_with_the_tap_flushed(config, launch, tmp_path):
    tap = TapConfig(directory=str(tmp_path), flush_ms=60_000, rules=(TapRule(name="all"),))
    process = launch(dataclasses.replace(config, tap=tap))
    client = process.connect()
    for _ in range(10):
        exchange(client, b"x" * 50)
    process.command.close()
    process.handover.close()
    assert process.wait() == 0
    assert receive_all(client) == b""
    client.close()
    assert stored(tmp_path) == {"request": 10, "response": 10}
    assert process.cells.cell("framegate.tap.matched") == process.cells.cell("framegate.tap.flushed") == 20
    appends = [value for (metric, _), value in process.cells.snapshot().items() if metric.name == "framegate.tap.append.duration"]
    assert (appends[0].count >= 1, appends[1].count + appends[2].count) == (True, 0)
    assert process.cells.cell("framegate.queue.length", "tap") == 0


def test_a_start_that_fails_says_why(config, launch):
    upstream = dataclasses.replace(config.upstreams[0], endpoints=("nowhere:1",))
    process = launch(dataclasses.replace(config, upstreams=(upstream,)))
    assert process.ready["type"] == "failed"
    assert "nowhere:1" in process.ready["error"]
    assert process.wait() == 1


def test_a_first_message_that_is_no_good_start_is_refused_with_the_reason(config, launch):
    for first, text in (("slot", "start.slot must be int, not str"), ("list", "the first message is list, not start")):
        process = launch(config, start=False)
        process.send({"type": "list"} if first == "list" else process.start_message(slot="3"))
        assert process.notice("failed")["error"] == f"MessageError: {text}"
        assert process.wait() == 1


def test_control_that_goes_away_before_the_start_is_no_error(config, launch):
    process = launch(config, start=False)
    process.command.close()
    assert process.wait() == 0


def test_a_link_out_of_step_is_the_end(config, launch):
    process = launch(config)
    process.command.sendall((MAX_FRAME + 1).to_bytes(4, "big"))
    assert process.wait() == 0


def test_replies_that_do_not_drain_stop_the_reading_of_commands_and_nothing_is_lost(config, launch):
    process = launch(config)
    clients = [process.connect() for _ in range(8)]
    for client in clients:
        exchange(client, b"x")
    process.command.setblocking(False)
    message = b"".join(process.encode("list", number, after=0, limit=8, listener=None) for number in range(1000, 21000))
    sent = 0
    stuck = 0
    while sent < len(message) and stuck < 50:
        try:
            sent += process.command.send(message[sent:])
            stuck = 0
        except BlockingIOError:
            stuck += 1
            time.sleep(0.005)
    assert sent < len(message), "commands are read although nobody reads the answers"
    exchange(clients[0], b"traffic goes on")
    process.command.setblocking(True)
    for number in range(1000, 1100):
        assert len(process.answer(number)["rows"]) == 8
    for client in clients:
        client.close()
