"""Tap rules changed while traffic flows: every frame is in the log once, or a gap counts it."""

import collections
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.control.v1.tap_service_pb2_grpc import TapServiceStub
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.tap import completeness
from framegate.proxy.tap.ledger import read_ledger
from tests.fakes.framegate import Framegate, config_before
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_frame

CHANGES: Final = 100
ENOUGH: Final = 200
LARGE: Final = 300 * 1024  # Above what always passes whole: such requests are cut through, so rules change within them, too


def body_of(number: int) -> bytes:
    """The body of a connection's frame of that number: its size and its bytes follow from that."""
    size = LARGE if number % 50 == 49 else 8 * (1 + number * 7 % 90)
    return number.to_bytes(8, "big") * (size // 8)


class Flow:
    """One connection whose numbered frames go round all the time."""

    def __init__(self, proxy: Framegate) -> None:
        self.sock = proxy.connect("plain")
        self.peer = peer_name(self.sock)  # its name in rows
        self.count = 0  # frames that came back; ``enough`` is set when a few of the large ones are among them, or it failed
        self.failure: Exception | None = None
        self.enough = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                bodies = [body_of(number) for number in range(self.count, self.count + 5)]
                self.sock.sendall(b"".join(map(frame, bodies)))
                for body in bodies:
                    assert read_frame(self.sock) == body, "another frame came back"
                    self.count += 1
                if self.count >= ENOUGH:
                    self.enough.set()
        except Exception as error:
            self.failure = error
            self.enough.set()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.sock.close()
        assert self.failure is None, repr(self.failure)


@pytest.fixture
def proxy(tmp_path: Path, upstream: ScriptedUpstream) -> Iterator[Framegate]:
    config = {
        **config_before(upstream.address, forwarding={"requests": "cut_through", "responses": "cut_through"}),
        "processors": 2,
        "memory_pool": {"size": "16MiB"},
        "tap": {"directory": "tap", "queue_size": "64MiB", "rules": [{"name": "all"}]},
    }
    with Framegate(tmp_path / "framegate", config) as running:
        yield running


def kinds_of_rules() -> list[dict[str, Any]]:
    """What a rule before the last may say, so that each way through the tap is taken."""
    rule = pb2.TapRule
    return [
        {"capture": rule.CAPTURE_LENGTHS},
        {"capture": rule.CAPTURE_HASH, "directions": [rule.DIRECTION_RESPONSE]},
        {"max_frame_bytes": 16},
        {"sample_frames": 0.5},
        {"sample_connections": 0.5, "directions": [rule.DIRECTION_REQUEST]},
        {"min_size_bytes": 400, "capture": rule.CAPTURE_LENGTHS},
        {"max_size_bytes": 100},
        {"blank": ["0-3"], "max_size_bytes": 1000},
        {"on_full": rule.ON_FULL_MUTE},
        {"networks": ["10.0.0.0/8"]},
        {"max_loss_percent": 100.0},
    ]


def change(stub: TapServiceStub, names: list[str], number: int, choose: random.Random) -> None:
    """Make a change of the rules; the last one stays, so that each frame is matched by some."""
    values = choose.choice(kinds_of_rules())
    verb = choose.choice(["create", "create", "update", "move", "delete"])
    if verb == "create" and len(names) < 8:
        rule = pb2.TapRule(name=f"rule-{number}", **values)
        before = choose.choice(names)
        stub.CreateTapRule(pb2.CreateTapRuleRequest(tap_rule=rule, before=before), timeout=10)
        names.insert(names.index(before), rule.name)
    elif len(names) == 1:
        stub.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(name="all", capture=pb2.TapRule.CAPTURE_FULL)), timeout=10)
    elif verb == "update":
        rule = pb2.TapRule(name=choose.choice(names[:-1]), **values)
        stub.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=rule, update_mask={"paths": ["*"]}), timeout=10)
    elif verb == "move":
        name = names.pop(0)
        names.insert(-1, name)
        stub.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(name=name), before="all"), timeout=10)
    else:
        stub.DeleteTapRule(pb2.DeleteTapRuleRequest(name=names.pop(choose.randrange(len(names) - 1))), timeout=10)


def check_whole(proxy: Framegate, rows: list[dict[str, Any]], known: set[str]) -> collections.Counter[str]:
    """Each frame of these connections is in the log once, as it was, or counted by a gap of the sampling; how many each rule has."""
    directory = str(proxy.folder / "tap")
    numbers: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    sampled: collections.Counter[tuple[str, str]] = collections.Counter()
    rules: collections.Counter[str] = collections.Counter()
    for item in read_frames(directory):
        assert item.rule in known
        rules[item.rule] += 1
        numbers[format_connection_id(item.connection), item.direction].append(item.number)
        expected = body_of(item.number)
        assert item.size == len(expected)
        if item.flags == 0 and len(item.body) == item.size:
            assert item.body == expected or (item.body[:4] == bytes(4) and item.body[4:] == expected[4:])
    for gap in read_gaps(directory):
        if gap.frames:
            assert gap.reason == "sampled", gap
            sampled[format_connection_id(gap.connection), gap.direction] += gap.frames
    for row in rows:
        for direction in ("request", "response"):
            key = row["id"], direction
            assert len(set(numbers[key])) == len(numbers[key]), "a frame is there twice"
            assert len(numbers[key]) + sampled[key] == row["frames"][direction]
            assert max(numbers[key], default=-1) < row["frames"][direction]
    assert sum(sampled.values()) > 0
    verdict = completeness.verify(directory)
    assert {row.state for row in verdict.rows} == {"complete"}
    assert sum(row.seen for row in verdict.rows) == sum(sum(row["frames"].values()) for row in rows)
    return rules


@pytest.mark.extended
@pytest.mark.slow
def test_rules_change_a_hundred_times_under_load_and_every_frame_is_accounted_for(proxy: Framegate) -> None:
    """Half a minute: a hundred changes, each in force in two busy processors before the next."""
    choose = random.Random(10)
    names = ["all"]
    flows = [Flow(proxy) for _ in range(4)]
    with proxy.api() as channel:
        stub = TapServiceStub(channel)
        for number in range(CHANGES):
            change(stub, names, number, choose)
            assert [rule.name for rule in stub.ListTapRules(pb2.ListTapRulesRequest(), timeout=10).tap_rules] == names
    for flow in flows:
        assert flow.enough.wait(60)
        flow.end()
    rows = [proxy.closed_row(flow.peer) for flow in flows]
    assert [row["frames"] for row in rows] == [{"request": flow.count, "response": flow.count} for flow in flows]
    assert proxy.stop() == 0
    rules = check_whole(proxy, rows, {"all", *(f"rule-{number}" for number in range(CHANGES))})
    assert len(rules) > 10
    assert not [row for row in proxy.rows if row["event"] in ("internal_error", "processor_died")]
    assert len(proxy.events("audit")) == CHANGES


@pytest.mark.slow
def test_open_connections_follow_and_a_processor_that_starts_anew_has_the_rules(proxy: Framegate) -> None:
    assert proxy.json("taps", "add", "sizes", "--capture", "lengths", "--before", "all")[0]["name"] == "sizes"
    with proxy.connect("plain") as client:
        assert ask(client, b"one") == b"one"
        proxy.json("taps", "set", "sizes", "--capture", "full", "--direction", "request")
        assert ask(client, b"two") == b"two"
        proxy.json("taps", "remove", "all")
        proxy.json("taps", "set", "sizes", "--expires", "10m")
        assert ask(client, b"three") == b"three"
    for pid in proxy.processors:
        os.kill(pid, signal.SIGTERM)
    for slot in (0, 1):
        proxy.wait_row(lambda row, slot=slot: row["event"] == "processor_ready" and row["slot"] == slot and row["generation"] > first_of(proxy, slot))
    with proxy.connect("plain") as client:
        assert ask(client, b"four") == b"four"
    assert [rule["name"] for rule in proxy.json("taps", "list")] == ["sizes"]
    assert proxy.stop() == 0
    found = [(item.rule, item.direction, item.body) for item in read_frames(str(proxy.folder / "tap"))]
    stream_records = read_ledger(str(proxy.folder / "tap")).streams.values()
    both, requests = [("plain", "request"), ("plain", "response")], [("plain", "request")]
    assert sorted(sorted(stream_record.tapped) for stream_record in stream_records if not stream_record.recovery) == sorted(
        [both, both, requests, requests]
    )
    ours = "sizes", "request"
    expected = [("all", "response", b"two"), (*ours, b"two"), (*ours, b"three"), (*ours, b"four")]
    assert sorted(item for item in found if item[2]) == sorted(expected)
    assert sorted(item[:2] for item in found if not item[2]) == [ours, ("sizes", "response")]


def first_of(proxy: Framegate, slot: int) -> int:
    return int(next(row["generation"] for row in proxy.events("processor_ready") if row["slot"] == slot))
