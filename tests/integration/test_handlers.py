"""A whole framegate with handlers: answers, and what happens to connections, processes and rows when a handler raises, hangs, grows or is killed."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.control.v1 import handler_service_pb2 as handlers_pb2
from framegate.control.v1.handler_service_pb2_grpc import HandlerServiceStub
from tests.fakes.framegate import Framegate, Row, Witness, alive
from tests.fakes.upstream import ask, frame, read_frame
from tests.fakes.waiting import until

HANDLERS = '''
import gc
import os
import socket
import time


def wires():
    """The descriptors of the sockets to processors."""
    return [wire._descriptor for wire in gc.get_objects() if type(wire).__name__ == "Processor" and wire.is_open]


class Obedient:
    """Does what a frame says, and answers it."""

    held = []

    def start(self):
        print("started", flush=True)

    def handle(self, frame, context):
        word, _, rest = bytes(frame).decode("latin-1").partition(" ")
        if word == "grow":
            self.held.append(bytearray(os.urandom(1024)) * 131072)
        if word in ("wait", "grow"):  # until a file is there
            while not os.path.exists(rest):
                time.sleep(0.005)
        elif word == "raise":
            raise ValueError(rest)
        elif word == "count":
            context.state["count"] = context.state.get("count", 0) + 1
            return str(context.state["count"]).encode()
        elif word == "babble":  # to the processor: a record that no handler process sends
            os.write(wires()[0], bytes.fromhex("00000009 03 0000000000000005"))
        elif word == "forget":  # the connections of every socket: the next request is of one that is not open
            for wire in gc.get_objects():
                if type(wire).__name__ == "Processor":
                    wire._connections.clear()
        return frame

    def stop(self):
        with open(os.path.join(os.path.dirname(__file__), "stopped"), "a") as file:
            file.write("stopped ")
'''


def config(**handlers: Any) -> Row:
    return {
        "memory_pool": {"size": "8MiB"},
        "handlers": {"processes": 2, **handlers},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "handler": "mine:Obedient", "max_receive_size": "1MiB"}],
    }


def start(folder: Path, changes: Row | None = None, *, wait: bool = True, **handlers: Any) -> Framegate:
    (folder / "mine.py").write_text(HANDLERS)
    return Framegate(folder, {**config(**handlers), **(changes or {})}, wait=wait)


def processes(proxy: Framegate) -> list[handlers_pb2.HandlerProcess]:
    with proxy.api() as channel:
        return list(HandlerServiceStub(channel).ListHandlers(handlers_pb2.ListHandlersRequest(), timeout=10).processes)


def busy(proxy: Framegate) -> int:
    """The pid of the process that has a frame in a handler, once one has."""
    found: list[int] = until(lambda: [item.pid for item in processes(proxy) if item.in_handler_count])
    return found[0]


def ready_again(proxy: Framegate, pid: int) -> None:
    """Wait until a process has taken the place of another."""
    slot = proxy.wait_row(lambda row: row["event"] == "handler_ready" and row["pid"] == pid)["slot"]
    proxy.wait_row(lambda row: row["event"] == "handler_ready" and row["slot"] == slot and row["pid"] != pid)


def event(name: str, **fields: Any) -> Callable[[Row], bool]:
    return lambda row: row["event"] == name and all(row[key] == value for key, value in fields.items())


@pytest.mark.slow
def test_a_handler_answers_and_is_listed_and_counted(tmp_path: Path) -> None:
    with start(tmp_path, {"processors": 2}) as proxy:
        clients = [proxy.connect("plain") for _ in range(4)]
        for client in clients:
            assert [ask(client, b"count"), ask(client, b"count"), ask(client, b"x" * 100_000)] == [b"1", b"2", b"x" * 100_000]
        until(lambda: sum(item.handled_count for item in processes(proxy)) == 12)
        for item in processes(proxy):
            assert (item.state, item.restart_count, item.handled_count, item.failed_count) == (handlers_pb2.HandlerProcess.STATE_RUNNING, 0, 6, 0)
            assert [(found.listener, found.name, found.description) for found in item.handlers] == [
                ("plain", "mine:Obedient", "Does what a frame says, and answers it.")
            ]
        assert proxy.cli("handlers", "list").stdout.count("plain: mine:Obedient (requests, responses)") == 2
        assert [row["pid"] for row in proxy.json("handlers", "list")] == [item.pid for item in processes(proxy)]
        assert "mine:Obedient" in proxy.cli("listeners", "list").stdout
        assert any(line.split() == ["handler", "processes", "2", "of", "2", "running"] for line in proxy.cli("status").stdout.splitlines())
        until(lambda: proxy.metric("framegate_handler_requests_total", framegate_handler_action="answer") == 12)
        assert proxy.metric("process_memory_usage_bytes", framegate_process="handler-0") > 0
        assert len([row for row in proxy.events("handler_output") if row["line"] == "started"]) == 2
        for client in clients:
            client.shutdown(socket.SHUT_WR)
            assert proxy.closed_row(client)["frames"] == {"request": 3, "response": 3}
            client.close()
        assert proxy.stop() == 0
    assert (tmp_path / "stopped").read_text() == "stopped stopped "


@pytest.mark.slow
def test_a_process_that_is_killed_costs_the_requests_that_it_had_and_nobody_else(tmp_path: Path) -> None:
    with start(tmp_path) as proxy, Witness(proxy, "plain") as witness:
        clients = [proxy.connect("plain") for _ in range(5)]
        for client in clients:
            assert ask(client, b"count") == b"1"
        witness.stop()  # its process may be the one
        clients[0].sendall(frame(f"wait {tmp_path}/never".encode()))
        pid = busy(proxy)
        os.kill(pid, signal.SIGKILL)
        row = proxy.closed_row(clients[0])
        assert (row["cause"], "handler process" in row["detail"]) == ("handler_failed", True)
        assert clients[0].recv(1) == b""
        answers = sorted(ask(client, b"count") for client in clients[1:])
        assert set(answers) <= {b"1", b"2"}, "who was with the dead process begins anew, the others go on"
        assert answers.count(b"2") >= 2
        died = proxy.wait_row(event("handler_died"))
        assert (died["pid"], died["reason"], died["exit_code"]) == (pid, "died", -9)
        ready_again(proxy, pid)
        until(lambda: [item.restart_count for item in processes(proxy) if item.last_end_reason == item.END_REASON_DIED] == [1])
        assert proxy.metric("framegate_handler_restarts_total", framegate_reason="died") == 1
        with proxy.connect("plain") as late:
            assert ask(late, b"count") == b"1"


def descriptors(*pids: int) -> list[int]:
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"), [("babble", "a record of kind 3"), pytest.param("forget", "which is not open", marks=pytest.mark.extended)]
)
def test_a_socket_that_breaks_while_both_live_is_replaced_and_the_process_goes_on_handling(tmp_path: Path, word: str, said: str) -> None:
    """Whichever side finds the record that cannot be. Who had a request there is lost; no process is, and no descriptor."""
    with start(tmp_path, processes=1) as proxy, proxy.connect("plain") as calm:
        assert ask(calm, b"count") == b"1"
        (handler,) = processes(proxy)
        pids = proxy.wait_row(event("processor_ready"))["pid"], handler.pid, proxy.process.pid
        before = descriptors(*pids)
        for times in range(1, 4):
            with proxy.connect("plain") as victim:
                victim.sendall(frame(word.encode()))
                if word == "forget":
                    assert read_frame(victim) == b"forget"
                    victim.sendall(frame(b"x"))
                assert proxy.ended_row(victim)["cause"] == "handler_failed"
            until(lambda times=times: len(proxy.events("handler_rejoined")) == times)
            assert ask(calm, b"count") == b"1", "its handler remembers nothing: the connection is another's"
            with proxy.connect("plain") as late:
                assert ask(late, b"count") == b"1"
        rows = proxy.events("handler_rejoined")
        assert [(row["slot"], row["pid"], row["processor"], row["level"]) for row in rows] == [(0, handler.pid, 0, "warning")] * 3
        assert all(said in row["error"] and row["apart_ms"] >= 100 for row in rows)
        until(lambda: all(now <= then for now, then in zip(descriptors(*pids), before, strict=True)))
        (after,) = processes(proxy)
        assert (after.pid, after.restart_count) == (handler.pid, 0)
        calm.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "reason", "limits"),
    [("wait", "timeout", {"timeout": "300ms"}), pytest.param("grow", "memory", {"memory": "96MiB"}, marks=pytest.mark.extended)],
)
def test_a_handler_that_hangs_or_grows_ends_with_its_process(tmp_path: Path, word: str, reason: str, limits: dict[str, str]) -> None:
    with start(tmp_path, **limits) as proxy, proxy.connect("plain") as victim, proxy.connect("plain") as other:
        assert ask(victim, b"count") == b"1"
        assert ask(other, b"count") == b"1"
        victim.sendall(frame(f"{word} {tmp_path}/never".encode()))
        died = proxy.wait_row(event("handler_died", reason=reason))
        assert ask(other, b"count") == b"2"
        ready_again(proxy, died["pid"])
        assert proxy.metric("framegate_handler_restarts_total", framegate_reason=reason) == 1
        assert proxy.closed_row(victim)["cause"] == "handler_failed"


@pytest.mark.slow
def test_a_handler_that_raises_ends_its_connection_and_is_told_with_its_traceback_once_a_second(tmp_path: Path) -> None:
    with start(tmp_path, processes=1) as proxy, Witness(proxy, "plain"):
        began = time.monotonic()
        for number in range(10):
            with proxy.connect("plain") as client:
                client.sendall(frame(f"raise number {number}".encode()))
                row = proxy.ended_row(client)
                assert row["cause"] == "handler_failed"
                assert f"ValueError: number {number}" in row["detail"]
        seconds = time.monotonic() - began
        raised = proxy.events("handler_raised")
        assert 1 <= len(raised) <= 2 + seconds
        assert (raised[0]["listener"], raised[0]["handler"], raised[0]["suppressed"]) == ("plain", "mine:Obedient", 0)
        assert "ValueError: number 0" in raised[0]["error"]
        assert "mine.py" in raised[0]["traceback"]
        until(lambda: processes(proxy)[0].failed_count == 10)
        assert processes(proxy)[0].restart_count == 0


@pytest.mark.slow
def test_a_drain_lets_answers_under_way_arrive_and_the_handlers_stop_last(tmp_path: Path) -> None:
    with start(tmp_path, {"drain": {"timeout": "10s", "quiet": "500ms"}}, processes=1) as proxy, proxy.connect("plain") as client:
        body = f"wait {tmp_path}/go".encode()
        client.sendall(frame(body))
        busy(proxy)
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(event("drain_began"))
        (tmp_path / "go").touch()
        assert read_frame(client) == body
        assert client.recv(1) == b""
        assert proxy.wait() == 0
        row = proxy.closed_row(client)
        assert (row["cause"], row["frames"]) == ("drained", {"request": 1, "response": 1})
        order = [row["event"] for row in proxy.rows if row["event"] in ("processor_stopped", "handler_stopped", "stopped")]
        assert order == ["processor_stopped", "handler_stopped", "stopped"]
    assert (tmp_path / "stopped").read_text() == "stopped "


@pytest.mark.slow
def test_a_second_signal_ends_a_handler_that_hangs_as_well(tmp_path: Path) -> None:
    with start(tmp_path, {"drain": {"timeout": "1m", "quiet": "50ms"}}, processes=1) as proxy, proxy.connect("plain") as client:
        client.sendall(frame(f"wait {tmp_path}/never".encode()))
        pid = busy(proxy)
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(event("drain_began"))
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait(10) == 1
        assert not alive(pid)
        assert proxy.wait_row(event("handler_stopped"))["forced"]


@pytest.mark.extended
@pytest.mark.slow
def test_handler_processes_end_with_control_however_it_ends(tmp_path: Path) -> None:
    with start(tmp_path) as proxy, proxy.connect("plain") as client:
        pids = [item.pid for item in processes(proxy)]
        client.sendall(frame(f"wait {tmp_path}/never".encode()))
        busy(proxy)
        proxy.process.kill()
        proxy.wait()
        until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_a_processor_that_is_replaced_has_its_handlers(tmp_path: Path) -> None:
    with start(tmp_path) as proxy:
        with proxy.connect("plain") as client:
            assert ask(client, b"count") == b"1"
            pid = proxy.wait_row(event("processor_ready"))["pid"]
            os.kill(pid, signal.SIGKILL)
            assert proxy.closed_row(client)["cause"] == "processor_died"
        with proxy.connect("plain") as client:
            assert ask(client, b"count") == b"1"
        assert [item.restart_count for item in processes(proxy)] == [0, 0]
        answer = proxy.cli("pool", "set", "--processors", "2")
        assert answer.returncode == 0, answer.stderr
        clients = [proxy.connect("plain") for _ in range(4)]
        assert [ask(client, b"count") for client in clients] == [b"1"] * 4
        slots = {row["slot"] for row in proxy.events("processor_ready")}
        assert slots == {0, 1}
