"""The control plane against a model: any sequence of changes from four clients at once, while traffic flows and processors die.

After each round, what the API says is in force is tried in every processor: frames of the limit and one byte more, upstreams, refused APIs, logins,
tapped frames, what stands for new connections. What happens follows from a seed; a failure has it, with the last steps. Environment variables:
``FRAMEGATE_CONTROL_STEPS`` (120; 10,000 take about twenty-five minutes), ``FRAMEGATE_CONTROL_SEED`` (1).
"""

import base64
import collections
import concurrent.futures
import contextlib
import copy
import functools
import itertools
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest
import yaml

from framegate.control.bounds import FIELD_NAMES
from framegate.control.configuration.units import parse_size
from framegate.control.demo.certificates import Certificates
from framegate.control.identity.passwords import new_credentials
from framegate.control.v1 import pool_service_pb2
from framegate.proxy.network.connection_id import parse_connection_id
from framegate.proxy.tap.log_reader import first_offset, streams
from tests.fakes.any_call import reason_of, send
from tests.fakes.framegate import Row
from tests.fakes.kafka_frames import request as kafka_request
from tests.fakes.live_node import APPLY, Node, check_rows, check_sizes, listener, settled
from tests.fakes.sasl_frames import log_in
from tests.fakes.tap_read import frames_in, read_blocks
from tests.fakes.upstream import ask, frame, peer_name, read_frame
from tests.fakes.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
STEPS: Final = int(os.environ.get("FRAMEGATE_CONTROL_STEPS", "120"))
SEED: Final = int(os.environ.get("FRAMEGATE_CONTROL_SEED", "1"))
CLIENTS: Final = 4
EACH: Final = 5  # Steps of a client between two checks
FIXED: Final = ("a", "b", "tls")
"""Listeners with traffic; ``d0`` to ``d3`` come and go, ``m`` is muted, closed and throttled, ``kafka`` is tapped, and ``sasl`` asks for a login."""
EXCUSED: Final = {"processor_died", "drained", "drain_timeout"}
ENDED: Final = (EOFError, ConnectionError, ssl.SSLError)
REFUSALS: Final = {"ABORTED", "FAILED_PRECONDITION", "UNAVAILABLE", "NOT_FOUND", "ALREADY_EXISTS", "INVALID_ARGUMENT"}
LATE: Final = {"CANCELLED", "DEADLINE_EXCEEDED"}
SIZES: Final = [64, 100, 1000, 4096, 5000, 16384, 40_000, 65_536]
USERS: Final = ("u0", "u1")
ROUNDS: Final = (4096, 4097)  # Iterations of users' credentials, and their passwords
LOOSE: Final = ("processors", "log.level")
"""Values whose rows may be in another order than the changes: that of fewer processors is written when the others have ended, and control alone has
the level, so it changes while an applied configuration that is decided is on its way."""
FLAT: Final = re.compile(r"memory_pool\.size|processors|log\.level|listeners\[\w+\]\.(max_receive_size|limits\.connections)")
PREFIXES: Final = {
    "UpdateLimit": "listeners[{}].", "UpdateMemoryPool": "memory_pool.", "UpdateLog": "log.", "UpdateProcessorPool": "",
    "UpdateNodeLimits": "node limits.", "UpdateKafkaRules": "listeners[{}].kafka.",
}  # fmt: skip
RESOURCES: Final = {
    "LimitService/UpdateLimit": "limit", "LimitService/UpdateNodeLimits": "node_limits", "PoolService/UpdateMemoryPool": "memory_pool",
    "PoolService/UpdateProcessorPool": "processor_pool", "LogService/UpdateLog": "log", "KafkaRuleService/UpdateKafkaRules": "kafka_rules",
    "TapService/UpdateTapRule": "tap_rule",
}  # fmt: skip


# --- clients ---------------------------------------------------------------------------------------------------------------------


class Link(NamedTuple):
    """A connection. ``since``: rows of the log when it was made; other listeners' clients may have, and later ones may get, its address."""

    listener: str
    sock: socket.socket
    peer: str
    since: int
    user: tuple[str, int] | None = None  # and the iterations of the password

    @property
    def key(self) -> tuple[str, str]:
        return self.listener, self.peer

    def closed(self, node: Node) -> Row:

        def find() -> Row | None:
            return next(
                (row for row in node.proxy.rows[self.since :] if row["event"] == "closed" and (row["listener"], row["peer"]) == self.key), None
            )

        found: Row = until(find, f"{self.key} has no row")
        return found


@contextlib.contextmanager
def link(node: Node, listener: str, address: str) -> Iterator[Link]:
    """A connection to a listener at an address, over TLS for the listener ``tls``."""
    host, _, port = address.rpartition(":")
    since = len(node.proxy.rows)
    sock = socket.create_connection((host, int(port)), timeout=30)
    with node.tls.wrap_socket(sock, server_hostname="localhost", do_handshake_on_connect=False) if listener == "tls" else sock as made:
        yield Link(listener, made, peer_name(made), since)


class Flow:
    """A client whose numbered frames go round all the time, and which connects again when its connection ends."""

    def __init__(self, node: Node, listener: str, number: int) -> None:
        self.ended: list[Link] = []  # connections that ended
        self.fault = ""  # what is wrong with what came over them; empty: nothing
        self.count = 0  # answers
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
            bodies = [f"{made.peer} {sent + index:020}".encode() for index in range(self._chance.randrange(1, 5))]
            made.sock.sendall(b"".join(map(frame, bodies)))
            for wanted in bodies:
                body = read_frame(made.sock)
                assert body == wanted, f"{made.key}: {body!r} came in place of {wanted!r}"
                self.count += 1
            sent += len(bodies)
            self._stop.wait(0.004)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)


# --- steps -------------------------------------------------------------------------------------------------------------------


@functools.cache
def credentials() -> list[Row]:
    """Of one user, with either password."""

    def made(iterations: int) -> Row:
        found = new_credentials(str(iterations), iterations=iterations)["SCRAM-SHA-256"]
        keys = {name: base64.b64encode(getattr(found, name)).decode() for name in ("salt", "stored_key", "server_key")}
        return {"mechanism": "SCRAM_MECHANISM_SHA_256", "iterations": iterations, **keys}

    return [made(iterations) for iterations in ROUNDS]


def some_config(node: Node, chance: random.Random) -> Row:
    """A configuration that may be applied: other listeners, upstreams, limits, processors, sizes."""
    config = copy.deepcopy(node.config)
    for item in config["listeners"]:
        item["max_receive_size"] = chance.choice(SIZES)
        if item["name"] in FIXED:
            item |= {"upstream": chance.choice(["u1", "u2", "both"]), "limits": {"connections": chance.choice([0, 5000])}}
    for name in ("d0", "d1", "d2", "d3"):
        if chance.random() < 0.5:
            keys = {"framing": "int32", "max_receive_size": chance.choice(SIZES), "timeouts": {"idle": chance.choice(["1m", "2m"])}}
            config["listeners"].append(listener(name, **keys))
    chance.shuffle(config["listeners"])
    for endpoint in config["upstreams"][-1]["endpoints"]:
        endpoint["weight"] = chance.randrange(1, 9)
    config["upstreams"][-1]["endpoints"] = config["upstreams"][-1]["endpoints"][: chance.choice([1, 2, 2])]
    config["processors"] = chance.choice([1, 2, 2, 3])
    config["memory_pool"] = {"size": chance.choice(["6MiB", "8MiB", "12MiB"])}
    return config


def step(node: Node, chance: random.Random) -> Row:
    """A call: ``method``, ``request``, ``etag`` (none, good or bad), ``ending`` (timeout or cancel, after s), ``again`` (repeated with its id)."""
    one = chance.choice([*FIXED, "kafka", "m", "sasl", "d0", "d1"])
    size, name = chance.choice(SIZES), chance.choice(["t0", "t1", "t2"])
    m: Row = {"selector": {"filter": "listener=m"}, "reason": "model", "max_affected_count": "1000"}
    terms: Row = chance.choice([{"ttl": "1s"}, {"ttl": "3600s"}, {}]) | chance.choice([{}, {"standing": True}])
    deny = [{"deny": ["ListGroups"]}] if chance.random() < 0.5 else []
    user = {"listener": "sasl", "user": {"name": chance.choice(USERS), "credentials": [chance.choice(credentials())]}}
    tapped = {"name": name, "listeners": chance.choice([["kafka"], ["kafka"], ["m"]]), "capture": f"CAPTURE_{chance.choice(['FULL', 'LENGTHS'])}"}
    quota = {"connections_per_second": str(chance.choice([0, 100_000])), "per_address": {"max_connection_count": str(chance.choice([0, 9000]))}}
    overrides = {"overrides": [{"network": "127.0.0.9/32", "access": chance.choice(["NETWORK_ACCESS_ALLOW", "NETWORK_ACCESS_DENY"])}]}
    config = some_config(node, chance)
    bad = chance.choice([{**config, "node": "other"}, {**config, "listeners": []}, {**config, "processors": -1}])
    text = json.dumps(chance.choice([config, config, bad]))
    calls: list[tuple[int, str, Row]] = [
        (8, "LimitService/UpdateLimit", {"limit": {"listener": one, "max_receive_size_bytes": str(size)}}),
        (2, "LimitService/UpdateLimit", {"limit": {"listener": one, "max_connection_count": str(chance.choice([0, 7000]))}}),
        (2, "LimitService/UpdateNodeLimits", {"node_limits": chance.choice([quota, overrides])}),
        (2, "PoolService/UpdateMemoryPool", {"memory_pool": {"size_bytes": str(chance.choice([6, 9, 13]) << 20)}}),
        (1, "PoolService/UpdateProcessorPool", {"processor_pool": {"processor_count": chance.choice([1, 2, 2, 3])}}),
        (2, "TapService/CreateTapRule", {"tap_rule": tapped}),
        (2, "TapService/UpdateTapRule", {"tap_rule": tapped}),
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
        (3, APPLY, {"text": text}),
        (1, APPLY, {}),
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


# --- what must hold ------------------------------------------------------------------------------------------------------------


class World:
    """A node under changes, and the checks."""

    def __init__(self, node: Node, undo: contextlib.ExitStack) -> None:
        self.node, self.proxy = node, node.proxy
        self.steps: collections.deque[str] = collections.deque(maxlen=CLIENTS * EACH * 2)
        self.results: collections.Counter[str] = collections.Counter()
        self.flows: list[Flow] = []
        self.broken: list[str] = []
        self.channels = [undo.enter_context(node.proxy.api()) for _ in range(CLIENTS)]
        self.api = functools.partial(send, self.channels[0])
        self._before: list[Link] = []
        self._open = undo.enter_context(contextlib.ExitStack())  # of these
        self._read = 0  # rows that were looked at
        self._known: Row = {}
        self._loose: dict[str, list[tuple[Any, Any]]] = {}
        self._logins = itertools.cycle(itertools.product(USERS, ROUNDS))
        self._tap = str(node.proxy.folder / "tap")
        self._tap_read: dict[str, int] = {}
        self._tapped: dict[int, int] = {}  # what was captured of requests, by connection
        self._captures: dict[int, int] = {}  # what should have been, of those of the check before
        undo.callback(self.pause)

    def resume(self) -> None:
        self.flows = [Flow(self.node, name, number) for number, name in enumerate(FIXED * 2)]

    def pause(self) -> None:
        """End all connections."""
        for flow in self.flows:
            flow.stop()
        self.results["frames"] += sum(flow.count for flow in self.flows)
        self.flows, self._before = [], []
        self._open.close()

    # --- rounds ----------------------------------------------------------------------------------------------------------------

    def round(self, number: int) -> None:
        """A few steps of each client at once, perhaps while a process is killed or stands still."""
        chance = random.Random(SEED * 1_000_003 + number)
        plans = [[step(self.node, chance) for _ in range(EACH)] for _ in self.channels]
        fault = chance.choice(["", "", "", "", "", "kill", "stop control", "stop processor", "reload"])
        place, pause, reloads = chance.random(), chance.uniform(0.0, 0.1), len(self.proxy.events("reloaded"))
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(self._run, client, plan) for client, plan in enumerate(plans)]
            time.sleep(pause)
            pids = sorted(self.proxy.processors)
            pid = pids[int(place * len(pids))] if fault in ("kill", "stop processor") else self.proxy.process.pid
            first, then = {"kill": (signal.SIGKILL, 0), "reload": (signal.SIGHUP, 0), "": (0, 0)}.get(fault, (signal.SIGSTOP, signal.SIGCONT))
            self.steps.append(f"{fault or 'no fault'} ({pid})")
            self.results[fault] += 1
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.kill(pid, first)
                time.sleep(pause * 3 if then else 0)
                os.kill(pid, then)
            for each in running:
                each.result()
        if fault == "reload":
            until(lambda: len(self.proxy.events("reloaded")) > reloads, "it is reloaded", 30)

    def _run(self, client: int, plan: list[Row]) -> None:
        for made in plan:
            said = "failed"
            try:
                said = self._outcome(self.channels[client], made["method"], copy.deepcopy(made["request"]), made)
            finally:
                text = json.dumps(made)
                self.steps.append(f"client {client}: {text[:300]}{'…' * (len(text) > 300)} -> {said[:200]}")
                self.results[f"{made['method'].rpartition('/')[2]} {said.partition(' ')[0]}"] += 1

    def _outcome(self, channel: grpc.Channel, method: str, request: Row, made: Row) -> str:
        field, etag = RESOURCES.get(method, ""), made["etag"]
        try:
            if method == "save":
                found = send(channel, "ConfigurationService/GetConfiguration", {"view": "VIEW_IN_FORCE"})
                self.node.write(found.configuration.text)
                method, request = APPLY, {"etag": found.configuration.etag}
            if request.get("id") == "?":
                request["id"] = next((item.id for item in reversed(send(channel, "ChannelService/ListChannelActions").actions)), "0")
            if field and etag == "good":
                name = {key: request[field][key] for key in ("listener", "name") if key in request[field]}
                etag = getattr(send(channel, method.replace("/Update", "/Get"), name), field).etag
            if field and etag:
                request[field]["etag"] = etag
            answer = send(channel, method, request, **made.get("ending", {}))
        except grpc.FutureCancelledError:
            return "cancelled"
        except grpc.RpcError as error:
            code, reason = error.code().name, reason_of(error)  # type: ignore[attr-defined]
            said = f"{code} {reason} {error.details()}"  # type: ignore[attr-defined]
            if code in REFUSALS if reason else code in LATE and "ending" in made:
                return said
            raise AssertionError(f"{made}: {said}") from error
        assert not field or etag != "bad", f"{made}: an update with a stale etag is made"
        for key, value in request[field].items() if field else ():
            assert key == "etag" or not isinstance(value, str) or str(getattr(getattr(answer, field), key)) in (value, "2", "1"), (made, answer)
        assert not made.get("again") or send(channel, method, request) == answer, f"{made}: repeated, it has another answer"
        return "OK"

    # --- in force --------------------------------------------------------------------------------------------------------------

    def said(self) -> Row:
        """What the API says is in force, once nothing is on its way."""

        def calm() -> Any:
            pool = self.api("PoolService/GetProcessorPool").processor_pool
            actions = self.api("ChannelService/ListChannelActions", {"page_size": 1000}).actions
            soon = any(item.HasField("expire_time") and item.expire_time.ToSeconds() < time.time() + 60 for item in actions)
            return [item.state for item in pool.processors] == [2] * pool.processor_count and not soon and (pool, actions)

        pool, actions = until(calm, "processors are not as many as they should be", 60)
        config = yaml.safe_load(self.api("ConfigurationService/GetConfiguration", {"view": "VIEW_IN_FORCE"}).configuration.text)
        limits = {item.listener: item for item in self.api("LimitService/ListLimits").limits}
        listeners = {item.name: item.address for item in self.api("ListenerService/ListListeners").listeners}
        memory = self.api("PoolService/GetMemoryPool").memory_pool
        users = self.api("UserService/ListUsers", {"listener": "sasl"})
        taps = self.api("TapService/ListTapRules")
        assert {item["name"] for item in config["listeners"]} == limits.keys() == listeners.keys()
        assert sum(share.size_bytes for share in memory.shares) == memory.size_bytes
        level = config.get("log", {}).get("level", "info")
        flat: Row = {"memory_pool.size": memory.size_bytes, "processors": pool.processor_count, "log.level": level}
        flat |= {f"listeners[{name}].max_receive_size": item.max_receive_size_bytes for name, item in limits.items()}
        flat |= {f"listeners[{name}].limits.connections": item.max_connection_count for name, item in limits.items()}
        upstreams = {item["name"]: str(item["endpoints"]) for item in config["upstreams"]}
        behind = {item["name"]: upstreams[item["upstream"]] for item in config["listeners"]}
        return {
            "slots": {item.slot for item in pool.processors if item.state != pool_service_pb2.Processor.STATE_DRAINING},
            "listeners": listeners,
            "sizes": {name: item.max_receive_size_bytes for name, item in limits.items()},
            "behind": {name: [each for each, address in self.node.endpoints.items() if address in text] for name, text in behind.items()},
            "standing": {item.verb for item in actions if item.standing},
            "users": {item.name: item.credentials[0].iterations for item in users.users},
            "capture": next((item.capture for item in taps.tap_rules if "kafka" in item.listeners), 0),
            "denied": bool(self.api("KafkaRuleService/GetKafkaRules", {"listener": "kafka"}).kafka_rules.rules),
            "closed": any(item.access == 2 for item in self.api("LimitService/GetNodeLimits").node_limits.overrides),
            "flat": flat,
        }

    def check(self) -> None:
        """What the API says is in force in every processor, the audit is true, and no frame is lost. A change on its way is waited for."""
        for _ in range(10):
            said = self.said()
            try:
                self._probe(said)
                self._chain(said["flat"])
                break
            except (AssertionError, OSError, EOFError):
                if self.said() == said:
                    raise
        else:
            raise AssertionError("changes go on, though all calls have ended")
        assert not self.broken, self.broken
        for flow in self.flows:
            before = flow.count
            until(lambda flow=flow, before=before: flow.fault or flow.count > before, "a client's frames stand still")
            assert not flow.fault, flow.fault
            while flow.ended:
                row = flow.ended.pop().closed(self.node)
                assert row["cause"] in EXCUSED, row
        check_rows(self.proxy)

    def _channel(self, made: Link) -> Any:
        """What the API says of a connection that was made just now."""

        def find() -> Any:
            peers = self.api("ChannelService/ListChannels", {"filter": f"listener={made.listener}", "page_size": 1000}).channels
            return next((item for item in peers if item.peer_address == made.peer), None)

        return until(find, f"{made.key} is no channel")

    def _probe(self, said: Row) -> None:
        with self._open:
            for made in self._before:
                self._check_old(said, made)
        self._check_tap()
        self._before, self._open, self._captures, chance = [], contextlib.ExitStack(), {}, random.Random(0)
        for name in said["listeners"]:
            seen: set[int] = set()
            with contextlib.ExitStack() as undo:
                for _ in range(40):
                    if name == "m" and chance.random() < 0.5:  # if it is closed at once, the processor with the fewest connections gets it
                        undo.enter_context(link(self.node, "a", said["listeners"]["a"]))
                    made = undo.enter_context(link(self.node, name, said["listeners"][name]))
                    seen.add(self._check_marked(said, made) if name == "m" else self._check_new(said, made, seen))
                    if seen == said["slots"]:
                        break
            assert seen == said["slots"], f"connections of {name} land in {seen}, and the API names {said['slots']}"
        with socket.create_connection(self.proxy.address("a"), timeout=10, source_address=("127.0.0.9", 0)) as sock:
            came = b""
            with contextlib.suppress(ConnectionError):
                sock.sendall(frame(b"x"))
                came = sock.recv(5)
            assert (came == b"") == said["closed"], f"127.0.0.9 got {came!r}"
        until(self._read_tap, "the frames of probes are not in the tap's log")
        user = next((user for user in said["users"].items() if user[0] in USERS), None)
        for name in said["listeners"].keys() - {"m", "tls", "sasl" if user is None else ""}:
            made = self._open.enter_context(link(self.node, name, said["listeners"][name]))
            if name == "sasl" and user is not None:
                made = made._replace(user=user)
                assert log_in(made.sock, user[0], str(user[1])), f"{user} cannot log in again"
            self._before.append(made)

    def _check_new(self, said: Row, made: Link, seen: set[int]) -> int:
        """A connection made now: its upstream, its rules, its limit, if it is the first one in its processor; returns that."""
        if made.listener == "tls":
            made.sock.do_handshake()  # type: ignore[attr-defined]
        slot: int = self._channel(made).processor_slot
        where = f"listener {made.listener}, processor {slot}"
        if slot in seen:
            return slot
        if made.listener == "kafka":
            self._captures[parse_connection_id(self._channel(made).id)] = said["capture"]
            made.sock.sendall(kafka_request(16, 0, 77))
            answer = read_frame(made.sock)
            assert (answer[:4], answer[4:] != b"ok") == (struct.pack(">i", 77), said["denied"]), f"{where}: {answer!r}"
        elif made.listener == "sasl":
            user, iterations = next(self._logins)
            let_in = log_in(made.sock, user, str(iterations))
            assert let_in == (said["users"].get(user) == iterations), f"{where}: login {let_in}, {user} with {iterations}: {said['users']}"
            if not let_in:
                assert made.closed(self.node)["cause"] == "auth_failed", where
                return slot
        else:
            assert ask(made.sock, b"who").decode() in said["behind"][made.listener], where
        self._check_size(made, said["sizes"][made.listener], where)
        self.results["probes"] += 1
        return slot

    def _check_size(self, made: Link, limit: int, where: str) -> None:
        if made.listener not in ("kafka", "sasl"):
            body = random.Random(limit).randbytes(limit)
            assert ask(made.sock, body) == body, f"{where}: {limit} bytes do not come back"
        made.sock.sendall(struct.pack(">i", limit + 1))
        with contextlib.suppress(ConnectionError):
            assert made.sock.recv(1) == b"", f"{where}: {limit + 1} bytes are not refused"
        with contextlib.suppress(OSError):
            made.sock.shutdown(socket.SHUT_WR)
        cause = made.closed(self.node)["cause"]
        assert cause == "frame_too_large", f"{where}: {limit + 1} bytes are refused with {cause}"

    def _check_old(self, said: Row, made: Link) -> None:
        """A connection of the check before either ended for a reason, or is as the API says now."""
        goes_on = False
        with contextlib.suppress(*ENDED, AssertionError):
            if made.listener in said["sizes"]:
                made.sock.settimeout(10)
                self._check_size(made, said["sizes"][made.listener], "")
                goes_on = True
        if goes_on:
            assert made.user is None or made.user in said["users"].items(), f"{made.user} is connected, and users are {said['users']}"
            return
        cause = made.closed(self.node)["cause"]
        allowed, limit = {*EXCUSED, "session_expired" if made.user is not None else ""}, said["sizes"].get(made.listener)
        assert cause in allowed, f"{made.key}, a connection of before, ended with {cause}; the limit is {limit}"

    def _check_marked(self, said: Row, made: Link) -> int:
        """What stands for new connections of ``m`` holds for one; returns its processor."""
        closes, mutes = 2 in said["standing"], 1 in said["standing"]
        made.sock.settimeout(0.05 if mutes and not closes else 10)
        came = b""
        try:
            made.sock.sendall(frame(b"x"))
            came = made.sock.recv(5)
        except TimeoutError:
            came = b"nothing"
        except ConnectionError:
            """It is closed."""
        slot = self._channel(made).processor_slot if came else int(made.closed(self.node)["id"].partition("-")[0])
        wanted = b"" if closes else b"nothing" if mutes else frame(b"x")
        assert came == wanted, f"listener m, processor {slot}: {came!r}, and {said['standing']} stands"
        return slot

    def _read_tap(self) -> bool:
        """Read what is new in the tap's log; whether it has at least what it should have of the probes."""
        for stream in streams(self._tap):
            for block in read_blocks(self._tap, stream, self._tap_read.get(stream) or first_offset(self._tap, stream)):
                self._tap_read[stream] = block.header.end
                self._tapped |= {item.connection: 1 if item.body else 2 for item in frames_in(block) if item.direction == "request"}
        return all(self._tapped.get(connection, 0) == capture for connection, capture in self._captures.items())

    def _check_tap(self) -> None:
        """Nor has it more: what should not be there would be there by now."""
        found = {connection: self._tapped.get(connection, 0) for connection in self._captures}
        assert self._read_tap(), f"the tap captured {found}, not {self._captures}"

    def _chain(self, said: Row) -> None:
        """Each value before a change is that after the last one; the last ones are what the API says."""
        rows, self._read = self.proxy.rows[self._read :], len(self.proxy.rows)
        for row in rows:
            if row["event"] == "configuration_applied" and row["by"] != "call":  # by a signal: no audit row
                self._known, self._loose = {}, {}
            if row["event"] != "audit" or (row["before"], row["after"]) == (None, None):
                continue
            before, after = flat_row(row, row["before"]), flat_row(row, row["after"])
            for path, value in after.items():
                if path.startswith("?"):
                    self._known = {each: known for each, known in self._known.items() if not concerns(path[1:], each)}
                elif path in LOOSE:
                    self._loose.get(path, []).append((before[path], value))
                elif self._known.get(path, before[path]) != before[path]:
                    self.broken.append(f"{path} was {self._known[path]!r}: {row}")
                self._known |= {} if path in LOOSE else {path: value}
        wrong = {path: (said[path], value) for path, value in self._known.items() if said.get(path, value) != value}
        assert not wrong, f"what the API and the last rows of the audit say: {wrong}"
        for path, pairs in self._loose.items():
            ends = collections.Counter(after for _, after in pairs)
            ends.subtract([*(before for before, _ in pairs[1:]), said[path]])
            assert not any(ends.values()), f"no order of these changes of {path} ends with {said[path]}: {pairs}"
        self._loose = {path: [(None, said[path])] for path in LOOSE}


def concerns(path: str, known: str) -> bool:
    """Whether a value that is followed may be another one when an applied configuration changes a path."""
    parts = {"limits": "node limits", "tap": "tap"}
    return known.startswith((path, parts.get(re.split(r"[.\[]", path)[0], path))) or path.startswith(known)


def flat_row(row: Row, values: Row | None) -> Row:
    """The values of an audit row by the paths of the configuration; one that is not followed has a path with ``?``."""
    method, request = row["method"].rpartition("/")[2], row["request"]
    if method == "ApplyConfiguration":
        found = {path if FLAT.fullmatch(path) else f"?{path}": text for path, text in (values or {}).items()}
        return {
            path: int(text) if text.isdecimal() else parse_size(text) if text[:1].isdigit() and path[0] != "?" else text
            for path, text in found.items()
        }
    name = next((item.get("name", item.get("listener")) for item in request.values() if isinstance(item, dict) and item), request.get("name"))
    if method.endswith(("TapRule", "User")):
        kind = "tap" if method.endswith("Rule") else "users"
        return {f"{kind}[{name}]": values and values.get("rule", values) if kind == "tap" else values}
    prefix = PREFIXES.get(method)
    own = {} if prefix is None or values is None else {FIELD_NAMES.get(key, key): each for key, each in values.items()}
    return {f"{prefix}{'limits.' * (key == 'connections' and method == 'UpdateLimit')}{key}".format(name): each for key, each in own.items()}


@pytest.mark.extended
def test_what_the_api_says_is_in_force_in_every_processor_after_any_changes(tmp_path: Path, made: Certificates) -> None:
    rounds = max(STEPS // (CLIENTS * EACH), 2)
    first: Row = {}
    with contextlib.ExitStack() as undo:
        node = Node(tmp_path, made, undo)
        world = World(node, undo)
        for number in range(rounds):
            try:
                world.resume() if not world.flows else None
                world.round(number)
                world.check()
            except BaseException as error:
                error.add_note(f"seed {SEED}, round {number}; the last steps:\n" + "\n".join(world.steps))
                raise
            if number in (rounds // 5, rounds - 1):
                world.pause()
                first, last = first or settled(node), settled(node)
    print(dict(sorted(world.results.items())))
    check_sizes(first, last, STEPS)
