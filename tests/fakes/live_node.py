"""A whole framegate before echoes and a broker, for tests of its control plane: what it has to be after any calls."""

import contextlib
import functools
import json
import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final

from framegate.control.demo.certificates import Certificates
from tests.fakes.any_call import send
from tests.fakes.framegate import Framegate, Row, resident_bytes, run_cli
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame
from tests.fakes.waiting import until

APPLY: Final = "ConfigurationService/ApplyConfiguration"


def listener(name: str, **keys: Any) -> Row:
    return {"name": name, "address": "127.0.0.1:0", "upstream": "both", "max_receive_size": "16KiB", **keys}


def tagged(name: str, sock: socket.socket) -> None:
    """An echo that can be asked for its name."""
    while True:
        body = read_frame(sock)
        sock.sendall(frame(name.encode() if body == b"who" else body))


def broker(sock: socket.socket) -> None:
    """Answers each request with its correlation id and two bytes."""
    while True:
        sock.sendall(frame(read_frame(sock)[4:8] + b"ok"))


class Node:
    """A framegate before the echoes ``u1`` and ``u2`` and a broker. ``config``: that of the start."""

    def __init__(self, folder: Path, made: Certificates, undo: contextlib.ExitStack) -> None:
        scripts = {"u1": functools.partial(tagged, "u1"), "u2": functools.partial(tagged, "u2"), "broker": broker}
        self.endpoints = {name: undo.enter_context(ScriptedUpstream(script)).address for name, script in scripts.items()}
        run_cli("users", "add", "first", "--file", str(folder / "users"), text="x\n")
        self.tls = ssl.create_default_context(cafile=str(made.ca))
        both = [{"address": self.endpoints[name], "weight": 1} for name in ("u1", "u2")]
        config = {
            "processors": 2,
            "memory_pool": {"size": "8MiB"},
            "listeners": [
                *map(listener, ("a", "b", "m")),
                listener("tls", tls={"certificate": str(made.server), "key": str(made.server_key)}),
                listener("kafka", protocol="kafka", kafka={"rules": []}, upstream="broker"),
                listener(
                    "sasl",
                    protocol="kafka",
                    sasl={"mechanisms": ["PLAIN"], "users": "users"},
                    timeouts={"failed_authentication": "0ms"},
                    upstream="broker",
                ),
            ],
            "upstreams": [*({"name": name, "endpoints": [address]} for name, address in self.endpoints.items()), {"name": "both", "endpoints": both}],
            "tap": {"directory": "tap", "budget": "128MiB", "rules": [{"name": "t0", "listeners": ["kafka"]}]},
        }
        self.proxy = undo.enter_context(Framegate(folder, config))
        self.config = self.proxy.config

    def write(self, text: str) -> None:
        """Exchange the file of the start in one step. Any thread."""
        path = self.proxy.folder / "framegate.yaml"
        new = path.with_suffix(f".{threading.get_ident()}")
        new.write_text(text)
        new.rename(path)


def check_rows(proxy: Framegate) -> None:
    """No row tells of a fault of ours; processors are killed."""
    errors = [row for row in proxy.rows[-5000:] if row["level"] == "error"]
    odd = [row for row in errors if "processor_died" not in (row["event"], row.get("cause")) and row["event"] != "configuration_refused"]
    assert (odd, proxy.metric("framegate_task_failures_total")) == ([], 0)


def settled(node: Node) -> Row:
    """The sizes of a node without connections, with the file of the start applied again, and other changes made, which are possible at once."""
    node.write(json.dumps(node.config))
    pid = node.proxy.process.pid
    with node.proxy.api() as channel:
        send(channel, APPLY, timeout=20)
        send(channel, "LimitService/UpdateLimit", {"limit": {"listener": "a", "max_receive_size_bytes": "16385"}}, timeout=5)
        send(channel, "PoolService/UpdateMemoryPool", {"memory_pool": {"size_bytes": str(9 << 20)}}, timeout=5)
        send(channel, "TapService/UpdateTapRule", {"tap_rule": {"name": "t0", "sample_frames": 0.5}}, timeout=5)
        send(channel, APPLY, timeout=20)
        while actions := send(channel, "ChannelService/ListChannelActions").actions:
            send(channel, "ChannelService/DeleteChannelAction", {"id": actions[0].id})
        until(lambda: len(node.proxy.processors) == 2 and not node.proxy.channels(), "two processors without connections remain", 30)
    time.sleep(1.5)  # control looks each second whether places of counters are free
    found = {f"threads of {pid}": len(os.listdir(f"/proc/{pid}/task")), "MiB": resident_bytes(pid) >> 20}
    return found | {f"descriptors of {name}": len(os.listdir(f"/proc/{each}/fd")) for name, each in enumerate([pid, *sorted(node.proxy.processors)])}


def check_sizes(before: Row, after: Row, calls: int) -> None:
    """``calls``: between the two; answers are kept for request ids that are repeated, so memory grows at first."""
    print(before, after)
    grown = {name: (before[name], after[name]) for name in before if after[name] > before[name] + (24 + calls // 1000 if name == "MiB" else 4)}
    assert before.keys() == after.keys(), (before, after)
    assert not grown, grown
