"""The thread that speaks with control; what needs a process of its own is in ``test_runtime``."""

import os
import signal
import socket
import threading
import time

import pytest

from framegate.proxy.handler.activity import Activity, HeartbeatCells, Interrupted, create_cells
from framegate.proxy.handler.reporter import EXIT_NS, INTERRUPTS_NS, Reporter
from framegate.proxy.server.link import LinkReader, encode


@pytest.fixture
def link():
    """Control's end, and a reporter that has not begun."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    descriptor = create_cells("test")
    reporter = Reporter(theirs, LinkReader(), Activity(), HeartbeatCells(descriptor))
    os.close(descriptor)
    yield ours, reporter
    ours.close()
    theirs.close()
    reporter._wakeup.close()
    reporter._waker.close()


def heard(sock: socket.socket, count: int) -> list[dict]:
    reader, found = LinkReader(), []
    while len(found) < count:
        found += reader.feed(sock.recv(65536))
    return found


def test_what_is_told_leaves_in_order(link):
    ours, reporter = link
    for index in range(3):
        reporter.notify({"type": "log", "index": index})
    reporter.notify_ready({"type": "ready"})
    reporter._write()
    assert heard(ours, 4) == [*({"type": "log", "index": index} for index in range(3)), {"type": "ready"}]


def test_the_heartbeat_moves_from_the_first_words_to_the_last(link):
    _, reporter = link
    told = []
    reporter._heartbeat(1)
    told.append(reporter._cells.heartbeat_ns)
    reporter.notify_ready({"type": "ready"})
    reporter._heartbeat(2)
    told.append(reporter._cells.heartbeat_ns)
    assert reporter._cells.read() == (0, 0, 0, 0, 0, 0)
    finishing = threading.Thread(target=reporter.finish)
    finishing.start()
    while not reporter.is_ending:
        time.sleep(0.001)
    while not reporter._flushed.is_set():
        reporter._write()
    finishing.join()
    reporter._heartbeat(3)
    assert [*told, reporter._cells.heartbeat_ns] == [0, 2, 2]


def test_rows_that_control_does_not_take_are_lost_and_the_first_words_and_broken_sockets_are_not(link):
    ours, reporter = link
    for _ in range(2000):
        reporter.notify({"type": "log", "text": "x" * 1000})
    reporter.notify({"type": "parted", "pair": 5, "error": "x"})
    reporter.notify({"type": "failed", "error": "x"})
    reporter._write()
    lost = reporter._writer.dropped_count
    assert 0 < lost < 2000
    ours.settimeout(0.2)
    reader, found = LinkReader(), []
    while not found or found[-1]["type"] != "failed":
        found += reader.feed(ours.recv(1 << 20))
        reporter._write()
    assert len(found) == 2002 - lost
    assert [message["type"] for message in found[-2:]] == ["parted", "failed"]


def test_finish_waits_until_control_has_taken_what_was_told(link):
    ours, reporter = link
    reporter.notify({"type": "failed", "error": "x" * 1_000_000})
    finishing = threading.Thread(target=reporter.finish)
    finishing.start()
    while len(reporter._rows) < 2:
        time.sleep(0.001)
    reporter._write()
    assert not reporter._flushed.is_set()
    reader, found = LinkReader(), []
    while not found:
        found += reader.feed(ours.recv(1 << 20))
        reporter._write()
    assert reporter._flushed.is_set()
    finishing.join()


def test_control_that_is_gone_is_the_end(link):
    ours, reporter = link
    called: list[int] = []
    reporter.at_end(lambda: called.append(1))
    ours.close()
    reporter.notify({"type": "log"})
    reporter._write()
    assert reporter.is_ending
    assert not reporter._read_command()
    assert called == [1]


@pytest.mark.parametrize("data", [encode({"type": "stop"}), b"\xff" * 8, b"\0\0\0\1x"])
def test_stop_and_what_cannot_be_read_are_the_end(link, data):
    ours, reporter = link
    called: list[int] = []
    other = encode({"type": "other"})
    reporter._reader.feed(other[:5])  # it came with the first words
    ours.sendall(other[5:])
    assert reporter._read_command()
    assert not reporter.is_ending
    ours.sendall(data)
    reporter._read_command()
    assert reporter.is_ending
    reporter.at_end(lambda: called.append(1))  # later than the end itself
    assert called == [1]


def test_the_end_takes_its_steps(link, monkeypatch):
    _, reporter = link
    steps: list[str] = []
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: steps.append("interrupt"))
    monkeypatch.setattr(os, "_exit", lambda code: steps.append(f"exit {code}"))
    reporter._enforce(1 << 62)
    assert steps == []  # it does not end
    reporter.begin_end()
    began = reporter._ended_ns
    for after in (0, INTERRUPTS_NS[0] - 1, INTERRUPTS_NS[0], INTERRUPTS_NS[0] + 1, INTERRUPTS_NS[1], INTERRUPTS_NS[2], EXIT_NS - 1):
        reporter._enforce(began + after)
    assert steps == ["interrupt"] * 3
    reporter._enforce(began + EXIT_NS)
    assert steps[3:] == ["exit 1"]


def test_the_main_thread_is_interrupted_where_it_may_be_and_when_it_is_time(link):
    _, reporter = link
    reporter._on_signal(signal.SIGTERM, None)  # somebody else's: the end begins in the thread
    reporter._read_wakeup()
    assert reporter.is_ending
    reporter._is_overdue = True
    with pytest.raises(Interrupted):
        reporter._on_signal(signal.SIGTERM, None)
    reporter.is_interruptible = False
    reporter._on_signal(signal.SIGTERM, None)
