"""The control plane against a model: any sequence of changes from four clients at once, while traffic flows and processors die; and any calls at all.

What happens follows from a seed; a failure says which, with the last steps. Environment variables: ``FRAMEGATE_CONTROL_STEPS`` (200; 10,000 take
about ten minutes), ``FRAMEGATE_CONTROL_SEED`` (1), ``FRAMEGATE_CONTROL_CALLS`` (2,000; random calls).
"""

import collections
import concurrent.futures
import contextlib
import copy
import functools
import json
import os
import random
import re
import signal
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest
import yaml

from framegate.control.bounds import FIELD_NAMES
from framegate.control.configuration.units import parse_size
from framegate.control.demo.certificates import Certificates
from tests.fakes.any_call import WHO, Node, any_call, kafka_request, reason_of, send
from tests.fakes.framegate import Row, resident_bytes, until
from tests.fakes.upstream import ask, frame, peer_name, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
STEPS: Final = int(os.environ.get("FRAMEGATE_CONTROL_STEPS", "200"))
SEED: Final = int(os.environ.get("FRAMEGATE_CONTROL_SEED", "1"))
CALLS: Final = int(os.environ.get("FRAMEGATE_CONTROL_CALLS", "2000"))
CLIENTS: Final = 4
EACH: Final = 5
"""Steps of a client between two checks."""
FIXED: Final = ("a", "b", "tls")
"""Listeners with traffic."""
EXCUSED: Final = {"processor_died", "drained", "drain_timeout"}
REFUSALS: Final = {
    "ABORTED", "FAILED_PRECONDITION", "UNAVAILABLE", "NOT_FOUND", "ALREADY_EXISTS", "INVALID_ARGUMENT", "CANCELLED", "DEADLINE_EXCEEDED"
}  # fmt: skip
SIZES: Final = [64, 100, 1000, 4096, 5000, 16384, 40_000, 65_536]


class Link(NamedTuple):
    """A connection of a client. ``since``: rows of the log when it was made; other listeners' clients may have, and later ones may get, its address."""

    listener: str
    sock: socket.socket
    peer: str
    since: int

    def closed(self, node: Node) -> Row:
        """Its row; wait for it."""

        def find() -> Row | None:
            rows = node.proxy.rows
            places = range(self.since, len(rows))
            return next((rows[at] for at in places if rows[at]["event"] == "closed" and self.key == (rows[at]["listener"], rows[at]["peer"])), None)

        found: Row = until(find, f"{self.key} has no row")
        return found

    @property
    def key(self) -> tuple[str, str]:
        return self.listener, self.peer


ENDED: Final = (EOFError, ConnectionError, ssl.SSLError)


@contextlib.contextmanager
def link(node: Node, listener: str, address: str) -> Iterator[Link]:
    """A connection to a listener at an address, over TLS for the listener ``tls``."""
    host, _, port = address.rpartition(":")
    since = len(node.proxy.rows)
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with node.tls.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False) if listener == "tls" else plain as sock:
            yield Link(listener, sock, peer_name(sock), since)


class Flow:
    """A client whose numbered frames go round all the time, and which connects again when its connection ends.

    Attributes:
        ended: connections that ended.
        fault: what is wrong with what came over them; empty: nothing.
        count: answers.
    """

    def __init__(self, node: Node, listener: str, number: int) -> None:
        self.ended: list[Link] = []
        self.fault = ""
        self.count = 0
        self._node, self._listener, self._chance = node, listener, random.Random(number)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with link(self._node, self._listener, self._node.proxy.serving["listeners"][self._listener]) as made:
                    try:
                        self._pass(made)
                    except ENDED:
                        self.ended.append(made)
        except Exception as error:
            self.fault = f"{self._listener}: {error!r}"

    def _pass(self, made: Link) -> None:
        sent = 0
        while not self._stop.is_set():
            count = self._chance.randrange(1, 5)
            made.sock.sendall(b"".join(frame(f"{made.peer} {sent + index:020}".encode()) for index in range(count)))
            for _ in range(count):
                body = read_frame(made.sock)
                assert body == f"{made.peer} {sent:020}".encode(), f"{made.key}: {body!r} came, and not number {sent}"
                sent += 1
                self.count += 1
            self._stop.wait(0.004)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


# --- steps -------------------------------------------------------------------------------------------------------------------


def some_config(node: Node, chance: random.Random) -> Row:
    """A configuration that may be applied: other listeners, upstreams, limits, processors, sizes."""
    config = copy.deepcopy(node.config)
    for listener in config["listeners"]:
        listener["max_receive_size"] = chance.choice(SIZES)
        if listener["name"] in FIXED:
            listener["upstream"] = chance.choice(["u1", "u2", "both"])
            listener["limits"] = {"connections": chance.choice([0, 5000])}
    for name in ("d0", "d1", "d2", "d3"):
        if chance.random() < 0.5:
            keys = {"framing": "int32", "max_receive_size": chance.choice(SIZES), "timeouts": {"idle": chance.choice(["1m", "2m"])}}
            config["listeners"].append(node.listener(name, **keys))
    chance.shuffle(config["listeners"])
    for endpoint in config["upstreams"][-1]["endpoints"]:
        endpoint["weight"] = chance.randrange(1, 9)
    config["upstreams"][-1]["endpoints"] = config["upstreams"][-1]["endpoints"][: chance.choice([1, 2, 2])]
    config["processors"] = chance.choice([1, 2, 2, 3])
    config["memory_pool"] = {"size": chance.choice(["6MiB", "8MiB", "12MiB"])}
    return config


def step(node: Node, chance: random.Random) -> Row:
    """A call: ``method``, ``request``, ``etag`` (none, good or bad), ``ending`` (timeout or cancel, after s), ``again`` (repeated with its id)."""
    listener = chance.choice([*FIXED, "kafka", "m", "sasl", "d0", "d1"])
    size, name = chance.choice(SIZES), chance.choice(["t0", "t1", "t2"])
    m: Row = {"selector": {"filter": "listener=m"}, "reason": "model", "max_affected_count": "1000"}
    terms: Row = chance.choice([{"ttl": "1s"}, {"ttl": "3600s"}, {}]) | chance.choice([{}, {"standing": True}])
    deny = [{"deny": ["ListGroups"]}] if chance.random() < 0.5 else []
    salted = [
        {
            "mechanism": "SCRAM_MECHANISM_SHA_256",
            "iterations": 4096,
            "salt": "MTIzNDU2Nzg5MDEy",
            "stored_key": "eHg" + "4" * 40 + "=",
            "server_key": "eHg" + "4" * 40 + "=",
        }
    ]
    user = {"listener": "sasl", "user": {"name": chance.choice(["u0", "u1"]), "credentials": salted}}
    quota = {
        "connections_per_second": str(chance.choice([0, 100_000, 200_000])),
        "per_address": {"max_connection_count": str(chance.choice([0, 9000]))},
    }
    overrides = {"overrides": [{"network": "127.0.0.9/32", "access": chance.choice(["NETWORK_ACCESS_ALLOW", "NETWORK_ACCESS_DENY"])}]}
    config = some_config(node, chance)
    bad = chance.choice([{**config, "node": "other"}, {**config, "listeners": []}, {**config, "processors": -1}])
    text = json.dumps(chance.choice([config, config, bad]))
    calls: list[tuple[int, str, Row]] = [
        (8, "LimitService/UpdateLimit", {"limit": {"listener": listener, "max_receive_size_bytes": str(size)}}),
        (2, "LimitService/UpdateLimit", {"limit": {"listener": listener, "max_connection_count": str(chance.choice([0, 7000]))}}),
        (2, "LimitService/UpdateNodeLimits", {"node_limits": chance.choice([quota, overrides])}),
        (2, "PoolService/UpdateMemoryPool", {"memory_pool": {"size_bytes": str(chance.choice([6, 9, 13]) << 20)}}),
        (1, "PoolService/UpdateProcessorPool", {"processor_pool": {"processor_count": chance.choice([1, 2, 2, 3])}}),
        (2, "TapService/CreateTapRule", {"tap_rule": {"name": name, "listeners": ["b"]}}),
        (2, "TapService/UpdateTapRule", {"tap_rule": {"name": name, "sample_frames": chance.choice([0.5, 1.0])}}),
        (2, "TapService/DeleteTapRule", {"name": name}),
        (2, "LogService/UpdateLog", {"log": {"level": chance.choice(["LEVEL_INFO", "LEVEL_DEBUG"])}}),
        (2, "KafkaRuleService/UpdateKafkaRules", {"kafka_rules": {"listener": "kafka", "rules": deny}, "update_mask": "rules"}),
        (1, f"UserService/{chance.choice(['Create', 'Update'])}User", user),
        (1, "UserService/DeleteUser", {"listener": "sasl", "name": user["user"]["name"]}),
        (2, "ChannelService/MuteChannels", m | terms),
        (2, "ChannelService/UnmuteChannels", m),
        (1, "ChannelService/CloseChannels", m | terms),
        (2, "ChannelService/ThrottleChannels", m | terms | {"request_bytes_per_second": "50000000"}),
        (6, "ChannelService/DeleteChannelAction", {"id": "?"}),
        (3, "ConfigurationService/ApplyConfiguration", {"text": text}),
        (1, "ConfigurationService/ApplyConfiguration", {}),
        (1, "save", {}),
    ]
    _, method, request = chance.choices(calls, [weight for weight, _, _ in calls])[0]
    request = dict(request)
    if chance.random() < 0.1 and "Action" not in method and method != "save":
        request["validate_only"] = True
    made: Row = {"method": method, "request": request, "etag": chance.choice(["", "", "", "good", "bad"])}
    if chance.random() < 0.2 and method != "save":
        made["ending"] = {chance.choice(["timeout", "cancel"]): round(chance.uniform(0.0005, 0.03), 4)}
    elif chance.random() < 0.15 and method != "save":
        request["request_id"] = str(uuid.UUID(int=chance.getrandbits(128)))
        made["again"] = True
    return made


ETAGS: Final = {
    "LimitService/UpdateLimit": "limit", "LimitService/UpdateNodeLimits": "node_limits", "PoolService/UpdateMemoryPool": "memory_pool",
    "PoolService/UpdateProcessorPool": "processor_pool", "LogService/UpdateLog": "log", "KafkaRuleService/UpdateKafkaRules": "kafka_rules",
    "TapService/UpdateTapRule": "tap_rule",
}  # fmt: skip
KEYS: Final = ("listener", "name")


class Caller:
    """One of the clients of the API. ``done``: gets what it did, and what came of it."""

    def __init__(self, node: Node, done: Callable[[Row, str], None]) -> None:
        self.channel = node.proxy.api()
        self._node, self._done = node, done

    def do(self, made: Row) -> None:
        said = ""
        try:
            said = self._outcome(made)
        except grpc.RpcError as error:
            code = error.code().name  # type: ignore[attr-defined]
            said = f"{code} {reason_of(error)} {error.details()}"  # type: ignore[attr-defined]
            assert code in REFUSALS, said
            assert "ending" in made or (code not in ("CANCELLED", "DEADLINE_EXCEEDED") and reason_of(error)), said
        except AssertionError as error:
            said = f"wrong: {error}"
            raise
        except grpc.FutureCancelledError:
            said = "cancelled"
        finally:
            self._done(made, said)

    def _outcome(self, made: Row) -> str:
        method, request = made["method"], copy.deepcopy(made["request"])
        if method == "save":
            found = send(self.channel, "ConfigurationService/GetConfiguration", {"view": "VIEW_IN_FORCE"})
            self._node.write(found.configuration.text)
            method, request = "ConfigurationService/ApplyConfiguration", {"etag": found.configuration.etag}
        if request.get("id") == "?":
            actions = send(self.channel, "ChannelService/ListChannelActions").actions
            request["id"] = actions[-1].id if actions else "0"
        if (field := ETAGS.get(method)) and made["etag"]:
            request[field] = {**request[field], "etag": self._etag(method, request[field], field) if made["etag"] == "good" else "0" * 16}
        answer = send(self.channel, method, request, **made.get("ending", {}))
        assert not (field and made["etag"] == "bad"), "an update with a stale etag is made"
        if made.get("again"):
            assert send(self.channel, method, request) == answer, "a repeated call has another answer"
        return "OK"

    def _etag(self, method: str, resource: Row, field: str) -> str:
        name = {key: resource[key] for key in KEYS if key in resource}
        return str(getattr(send(self.channel, method.replace("/Update", "/Get"), name), field).etag)


# --- what must hold ------------------------------------------------------------------------------------------------------------


class World:
    """A node under changes, and the checks."""

    def __init__(self, node: Node) -> None:
        self.node, self.proxy = node, node.proxy
        self.steps: collections.deque[str] = collections.deque(maxlen=CLIENTS * EACH * 2)
        self.results: collections.Counter[str] = collections.Counter()
        self.count = 0
        self.flows: list[Flow] = []
        self.resume()
        self.callers = [Caller(node, functools.partial(self._note, number)) for number in range(CLIENTS)]
        self.api = functools.partial(send, self.callers[0].channel)
        self.before: list[Link] = []
        self._listed: dict[tuple[str, str], Any] = {}
        self.veterans = contextlib.ExitStack()
        self.probes = 0
        self._read = 0  # rows that were looked at
        self._known: dict[str, Any] = {}
        self._loose: dict[str, list[tuple[Any, Any]]] = {}
        self.broken: list[str] = []

    def _note(self, number: int, made: Row, said: str) -> None:
        text = json.dumps(made)
        self.steps.append(f"client {number}: {text[:300]}{'…' * (len(text) > 300)} -> {said[:200]}")
        self.results[f"{made['method'].rpartition('/')[2]} {said.partition(' ')[0] or 'failed'}"] += 1

    # --- rounds ----------------------------------------------------------------------------------------------------------------

    def round(self, number: int) -> None:
        chance = random.Random(SEED * 1_000_003 + number)
        plans = [[step(self.node, chance) for _ in range(EACH)] for _ in self.callers]
        fault = chance.choice(["", "", "", "", "", "kill", "stop control", "stop processor", "reload"])
        place, pause = chance.random(), chance.uniform(0.0, 0.1)
        reloads = len(self.proxy.events("reloaded"))

        def run(caller: Caller, plan: list[Row]) -> None:
            for made in plan:
                caller.do(made)

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(run, *each) for each in zip(self.callers, plans, strict=True)]
            time.sleep(pause)
            pids = sorted(self.proxy.processors)
            pid = self.proxy.process.pid if fault == "stop control" else pids[int(place * len(pids))]
            if fault:
                self.steps.append(f"{fault} ({pid})")
                self.results[fault] += 1
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                if fault == "kill":
                    os.kill(pid, signal.SIGKILL)
                elif fault == "reload":
                    self.proxy.process.send_signal(signal.SIGHUP)
                elif fault:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(pause * 3)
                    os.kill(pid, signal.SIGCONT)
            for each in running:
                each.result()
        if fault == "reload":
            until(lambda: len(self.proxy.events("reloaded")) > reloads, "it is reloaded", 30)

    # --- in force --------------------------------------------------------------------------------------------------------------

    def said(self) -> Row:
        """What the API says is in force, once nothing is on its way."""

        def running() -> Any:
            pool = self.api("PoolService/GetProcessorPool").processor_pool
            states = [item.state for item in pool.processors]
            return pool if states == [2] * pool.processor_count else None

        pool = until(running, "all processors run", 60)
        actions = self.api("ChannelService/ListChannelActions", {"page_size": 1000}).actions
        soon = [item.expire_time.ToSeconds() for item in actions if item.HasField("expire_time") and item.expire_time.ToSeconds() < time.time() + 60]
        if soon:
            time.sleep(0.1)
            return self.said()
        config = yaml.safe_load(self.api("ConfigurationService/GetConfiguration", {"view": "VIEW_IN_FORCE"}).configuration.text)
        limits = {item.listener: item for item in self.api("LimitService/ListLimits").limits}
        listeners = {item.name: item for item in self.api("ListenerService/ListListeners").listeners}
        assert {item["name"] for item in config["listeners"]} == limits.keys() == listeners.keys()
        memory = self.api("PoolService/GetMemoryPool").memory_pool
        assert sum(share.size_bytes for share in memory.shares) == memory.size_bytes
        return {
            "config": config,
            "slots": {item.slot for item in pool.processors},
            "listeners": {name: item.address for name, item in listeners.items()},
            "sizes": {name: item.max_receive_size_bytes for name, item in limits.items()},
            "standing": {item.verb for item in actions if item.standing},
            "denied": bool(self.api("KafkaRuleService/GetKafkaRules", {"listener": "kafka"}).kafka_rules.rules),
            "closed": any(item.access == 2 for item in self.api("LimitService/GetNodeLimits").node_limits.overrides),
            "flat": self.flat(config, limits, memory.size_bytes, pool.processor_count),
        }

    @staticmethod
    def flat(config: Row, limits: dict[str, Any], size: int, count: int) -> Row:
        """Values by the paths that ``chain`` uses."""
        flat: Row = {"memory_pool.size": size, "processors": count, "log.level": config.get("log", {}).get("level", "info")}
        for name, item in limits.items():
            flat[f"listeners[{name}].max_receive_size"] = item.max_receive_size_bytes
            flat[f"listeners[{name}].limits.connections"] = item.max_connection_count
        return flat

    def check(self) -> None:
        """What the API says is in force in every processor, the audit is true, and no frame is lost. A change on its way is waited for."""
        for _ in range(10):
            said = self.said()
            try:
                self._probe(said)
                self.chain(said["flat"])
            except (AssertionError, OSError, EOFError):
                if self.said() == said:
                    raise
            else:
                break
        else:
            raise AssertionError("changes go on, though all calls have ended")
        assert not self.broken, self.broken
        self.traffic()

    def _channels(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        token = ""
        while True:
            page = self.api("ChannelService/ListChannels", {"page_size": 1000, "page_token": token})
            found |= {(item.listener, item.peer_address): item for item in page.channels}
            if not (token := page.next_page_token):
                return found

    def _channel(self, made: Link) -> Any:
        """What the API says of a connection that was made just now."""
        if made.key not in self._listed:
            until(lambda: made.key in (listed := self._channels()) and not self._listed.update(listed), f"{made.key} is no channel")
        return self._listed.pop(made.key)

    def _probe(self, said: Row) -> None:
        with self.veterans:
            for made in self.before:
                self._veteran(said, made)
        self.before, self.veterans = [], contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            found: dict[str, dict[int, Link]] = {name: {} for name in said["listeners"] if name not in ("m", "sasl")}
            self._listed.clear()
            chance = random.Random(0)  # else they may land in turns
            for _ in range(30):
                missing = {name: len(said["slots"] - slots.keys()) for name, slots in found.items()}
                names = [name for name, count in missing.items() for _ in range(count * chance.randrange(1, 4))]
                if not names:
                    break
                fresh = [undo.enter_context(link(self.node, name, said["listeners"][name])) for name in names]
                for made in fresh:
                    if made.listener == "tls":
                        made.sock.do_handshake()  # type: ignore[attr-defined]
                for made in fresh:
                    found[made.listener].setdefault(self._channel(made).processor_slot, made)
            odd = {name: sorted(slots) for name, slots in found.items() if slots.keys() != said["slots"]}
            assert not odd, f"connections land in {odd}, and the API names {said['slots']}"
            for name, slots in found.items():
                for slot, made in slots.items():
                    self._new(said, made, f"listener {name}, processor {slot}")
                    self.probes += 1
        self._standing(said)
        with socket.create_connection(self.proxy.address("a"), timeout=10, source_address=("127.0.0.9", 0)) as sock:
            came = b""
            with contextlib.suppress(ConnectionError):
                sock.sendall(frame(b"x"))
                came = sock.recv(5)
            assert (came == b"") == said["closed"], f"127.0.0.9 got {came!r}"
        names = [name for name in said["listeners"] if name not in ("m", "sasl", "tls")]
        self.before = [self.veterans.enter_context(link(self.node, name, said["listeners"][name])) for name in names]

    def _new(self, said: Row, made: Link, where: str) -> None:
        """A connection made now: its upstream, its rules, its limit."""
        if made.listener == "kafka":
            made.sock.sendall(kafka_request(77))
            answer = read_frame(made.sock)
            assert answer[:4] == struct.pack(">i", 77), where
            assert (answer[4:] != b"ok") == said["denied"], f"{where}: {answer!r}, and rules deny: {said['denied']}"
            self._refused(made, said["sizes"]["kafka"], where)
            return
        upstream = next(item["upstream"] for item in said["config"]["listeners"] if item["name"] == made.listener)
        kept = next(item for item in said["config"]["upstreams"] if item["name"] == upstream)["endpoints"]
        names = [each for each, address in self.node.endpoints.items() if address and address in str(kept)]
        assert (tag := ask(made.sock, WHO).decode()) in names, f"{where}: the upstream {tag} is none of {names}"
        self._size(made, said["sizes"][made.listener], where)

    def _size(self, made: Link, limit: int, where: str) -> None:
        body = random.Random(limit).randbytes(limit)
        assert ask(made.sock, body) == body, f"{where}: {limit} bytes do not come back"
        self._refused(made, limit, where)

    def _refused(self, made: Link, limit: int, where: str) -> None:
        made.sock.sendall(struct.pack(">i", limit + 1))
        with contextlib.suppress(ConnectionError):
            assert made.sock.recv(1) == b"", f"{where}: {limit + 1} bytes are not refused"
        with contextlib.suppress(OSError):
            made.sock.shutdown(socket.SHUT_WR)
        cause = made.closed(self.node)["cause"]
        assert cause == "frame_too_large", f"{where}: {limit + 1} bytes are refused with {cause}"

    def _veteran(self, said: Row, made: Link) -> None:
        """A connection of the check before either ended for a reason, or is as the API says now."""
        channel = self._channels().get(made.key)
        if channel is not None and channel.state != 5 and made.listener in said["sizes"]:
            with contextlib.suppress(*ENDED):
                if made.listener != "kafka":
                    self._size(made, said["sizes"][made.listener], f"{made.key}, processor {channel.processor_slot}, a connection of before")
                return
        cause = made.closed(self.node)["cause"]
        assert cause in EXCUSED, f"{made.key}: a connection ended with {cause}"

    def _standing(self, said: Row) -> None:
        """What stands for new connections of ``m`` holds in every processor."""
        seen: set[int] = set()
        closes, mutes = 2 in said["standing"], 1 in said["standing"]
        with contextlib.ExitStack() as undo:
            for _ in range(20):
                made = undo.enter_context(link(self.node, "m", said["listeners"]["m"]))
                made.sock.settimeout(0.05 if mutes and not closes else 10)
                came = b"nothing"
                with contextlib.suppress(TimeoutError):
                    try:
                        made.sock.sendall(frame(b"x"))
                        came = made.sock.recv(5)
                    except ConnectionError:
                        came = b""
                if came:
                    slot = self._channel(made).processor_slot
                else:
                    row = made.closed(self.node)
                    slot = int(row["id"].partition("-")[0])
                    assert row["cause"] == "admin", row
                wanted = b"" if closes else b"nothing" if mutes else frame(b"x")
                assert came == wanted, f"listener m, processor {slot}: {came!r}, and {said['standing']} stands"
                seen.add(slot)
                if seen == said["slots"]:
                    return
        raise AssertionError(f"connections of listener m land in {seen}, and the API names {said['slots']}")

    # --- traffic and rows ------------------------------------------------------------------------------------------------------

    def traffic(self) -> None:
        """Frames pass, and connections ended only for known reasons."""
        for flow in self.flows:
            before = flow.count
            until(lambda flow=flow, before=before: flow.fault or flow.count > before, "a client's frames stand still")
            assert not flow.fault, flow.fault
            while flow.ended:
                row = flow.ended.pop().closed(self.node)
                assert row["cause"] in EXCUSED, row
        odd = [row for row in self.proxy.rows[-3000:] if row["level"] == "error" and row["event"] not in ("processor_died",)]
        assert not odd, odd
        assert not self.proxy.metric("framegate_task_failures_total")

    def chain(self, said: Row) -> None:
        """Each value before a change is that after the last one; the last ones are what the API says."""
        rows, self._read = self.proxy.rows[self._read :], len(self.proxy.rows)
        for row in rows:
            if row["event"] == "configuration_applied" and row["by"] != "call":
                self._known.clear()  # by a signal: no audit row
                self._loose.clear()
            if row["event"] != "audit" or row["after"] is None:
                continue
            before, after = flat_row(row, row["before"] or {}), flat_row(row, row["after"])
            for path, value in after.items():
                if path.startswith("?"):
                    self._known = {each: known for each, known in self._known.items() if not each.startswith(path[1:])}
                elif path in LOOSE:
                    self._loose.get(path, []).append((before[path], value))
                    continue
                elif self._known.get(path, before[path]) != before[path]:
                    self.broken.append(f"{path} was {self._known[path]!r}: {row}")
                self._known[path] = value
        for path, value in self._known.items():
            assert said.get(path, value) == value, f"{path} is {said[path]!r}, and the last row of the audit says {value!r}"
        for path, pairs in self._loose.items():
            ends = collections.Counter(after for _, after in pairs)
            ends.subtract([*(before for before, _ in pairs[1:]), said[path]])
            assert not any(ends.values()), f"no order of these changes of {path} ends with {said[path]}: {pairs}"
        self._loose = {path: [(None, said[path])] for path in LOOSE}

    def resume(self) -> None:
        self.flows = [Flow(self.node, name, number) for number, name in enumerate(FIXED * 2)]

    def pause(self) -> None:
        """End all connections."""
        for flow in self.flows:
            flow.stop()
        self.count += sum(flow.count for flow in self.flows)
        self.flows, self.before = [], []
        self.veterans.close()

    def close(self) -> None:
        self.pause()
        for caller in self.callers:
            caller.channel.close()


LOOSE: Final = ("processors", "log.level")
"""Values whose rows may be in another order than the changes: that of fewer processors is written when the others have ended, and control alone has the
level, so it changes while an applied configuration that is decided is on its way."""
FLAT: Final = re.compile(r"memory_pool\.size|processors|log\.level|listeners\[\w+\]\.(max_receive_size|limits\.connections)")


def flat_row(row: Row, values: Row) -> Row:
    """The values of an audit row by the paths of the configuration; one that is not followed has a path with ``?``."""
    method, request = row["method"].rpartition("/")[2], row["request"]
    if method == "ApplyConfiguration":
        return {path if FLAT.fullmatch(path) else f"?{path}": _number(text) if FLAT.fullmatch(path) else text for path, text in values.items()}
    prefix = {"UpdateLimit": "listeners[{}].", "UpdateMemoryPool": "memory_pool.", "UpdateLog": "log.", "UpdateProcessorPool": ""}.get(method)
    if prefix is None:
        return {}
    own = {FIELD_NAMES.get(name, name): value for name, value in values.items()}
    prefix = prefix.format(request.get("limit", {}).get("listener"))
    return {prefix + ("limits." * (name == "connections") + name): value for name, value in own.items()}


def _number(text: str) -> Any:
    return int(text) if text.isdecimal() else parse_size(text) if text[:1].isdigit() else text


@pytest.fixture
def node(tmp_path: Path, made: Certificates) -> Iterator[Node]:
    running = Node(tmp_path, made)
    try:
        yield running
    finally:
        running.close()


class Sizes(NamedTuple):
    """Descriptors of control and its processors, control's threads, the number of processors, and control's memory in MiB."""

    descriptors: list[int]
    threads: int
    processors: int
    memory: int


def settled(node: Node) -> Sizes:
    """The sizes of a node without connections, with the file of the start applied again; that is possible at once."""
    node.write(node.config)
    pid = node.proxy.process.pid
    with node.proxy.api() as channel:
        for method, request in (
            ("ConfigurationService/ApplyConfiguration", {}),
            ("LimitService/UpdateLimit", {"limit": {"listener": "a", "max_receive_size_bytes": "16385"}}),
            ("PoolService/UpdateMemoryPool", {"memory_pool": {"size_bytes": str(9 << 20)}}),
            ("TapService/UpdateTapRule", {"tap_rule": {"name": "t0", "sample_frames": 0.5}}),
            ("ConfigurationService/ApplyConfiguration", {}),
        ):
            until(lambda method=method, request=request: succeeds(channel, method, request), f"{method} is refused")
        while actions := send(channel, "ChannelService/ListChannelActions").actions:
            send(channel, "ChannelService/DeleteChannelAction", {"id": actions[0].id})
        until(lambda: len(node.proxy.processors) == 2 and not node.proxy.channels(), "two processors without connections remain", 30)
        time.sleep(1.5)  # control looks each second whether places of counters are free
        pids = [pid, *sorted(node.proxy.processors)]
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return Sizes([len(list(Path(f"/proc/{each}/fd").iterdir())) for each in pids], threads, len(pids) - 1, resident_bytes(pid) >> 20)


def succeeds(channel: grpc.Channel, method: str, request: Row) -> bool:
    try:
        send(channel, method, request, timeout=10)
    except grpc.RpcError as error:
        assert reason_of(error) not in ("CHANGE_PENDING", ""), error
        return False
    return True


def check_nothing_left(before: Sizes, after: Sizes, calls: int) -> None:
    """``calls``: between the two."""
    print(before, after)
    most = [count + 3 for count in before.descriptors]
    assert all(count <= allowed for count, allowed in zip(after.descriptors, most, strict=True)), (before, after)
    assert after.threads <= before.threads + 4, (before, after)
    assert after.memory <= before.memory + 24 + calls // 1000, (before, after)


def test_what_the_api_says_is_in_force_in_every_processor_after_any_changes(node: Node) -> None:
    world = World(node)
    rounds = max(STEPS // (CLIENTS * EACH), 2)
    number = 0
    try:
        for number in range(rounds):
            world.round(number)
            world.check()
            if number == rounds // 5:
                world.pause()
                first = settled(node)
                world.resume()
    except BaseException as error:
        error.add_note(f"seed {SEED}, round {number}; the last steps:\n" + "\n".join(world.steps))
        raise
    finally:
        world.close()
        print(json.dumps(dict(sorted(world.results.items()))), f"{world.probes} probes, {world.count} frames")
    check_nothing_left(first, settled(node), STEPS)


def test_any_calls_leave_nothing_behind(node: Node) -> None:
    """No call fails with a fault of ours, a refusal has a reason, changes are possible afterwards, and nothing has grown."""
    counts: collections.Counter[str] = collections.Counter()
    faults: list[str] = []

    def client(number: int, count: int) -> None:
        chance = random.Random(number)
        with node.proxy.api() as channel:
            for _ in range(count):
                method, data, ending = any_call(chance)
                code = "OK"
                try:
                    send(channel, method, data, **ending)
                except grpc.FutureCancelledError:
                    code = "CANCELLED"
                except grpc.RpcError as error:
                    code = error.code().name  # type: ignore[attr-defined]
                    if code in ("INTERNAL", "UNKNOWN", "DATA_LOSS") or not (ending or reason_of(error)):
                        faults.append(f"{method} {data[:200]!r} ({len(data)} bytes) {ending}: {error}")
                counts[code] += 1

    def calls(first: int, count: int) -> Sizes:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: client(number, count // 8), range(first, first + 8)))
        assert not faults, "\n".join(faults[:10])
        return settled(node)

    before = calls(SEED * 100, CALLS // 5)
    after = calls(SEED * 100 + 50, CALLS - CALLS // 5)
    print(dict(counts))
    check_nothing_left(before, after, CALLS)
    odd = [row for row in node.proxy.rows if row["level"] == "error" and row["event"] not in ("configuration_refused",)]
    assert not odd and not node.proxy.metric("framegate_task_failures_total"), odd[:5]
