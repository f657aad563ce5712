import dataclasses
import ipaddress
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.record import DIRECTION_REQUEST, DIRECTION_RESPONSE, KINDS
from framegate.proxy.tap.rules import CompiledRule, TapRules, parse_address
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.cases import each_of
from tests.fakes.disk import FakeDisk
from tests.fakes.runs import run_of
from tests.fakes.tap_read import read_blocks, read_ends


def writer_in(folder: Path | None = None, disk: FakeDisk | None = None) -> TapWriter:
    return TapWriter(TapConfig(directory=str(folder or tempfile.gettempdir())), "n", "0", "b", disk)


def match(*rules: TapRule, direction: int = DIRECTION_REQUEST, principal: str | None = "CN=a", peer: str | None = "10.1.2.3:55") -> FrameTap | None:
    return TapRules(rules, writer_in()).match("main", "framed", direction, principal, peer, 7)


@each_of(
    ("rule", "facts", "hits"),
    [
        (TapRule(name="all"), {}, True),
        (TapRule(name="all"), {"direction": DIRECTION_RESPONSE, "principal": None, "peer": None}, True),
        (TapRule(name="r", listeners=("main", "x")), {}, True),
        (TapRule(name="r", listeners=("x",)), {}, False),
        (TapRule(name="r", directions=("request",)), {}, True),
        (TapRule(name="r", directions=("response",)), {}, False),
        (TapRule(name="r", directions=()), {}, False),
        (TapRule(name="r", principals=("CN=a",)), {}, True),
        (TapRule(name="r", principals=("CN=ab",)), {}, False),
        (TapRule(name="r", principals=("CN=a",)), {"principal": None}, False),
        (TapRule(name="r", networks=("10.0.0.0/8",)), {}, True),
        (TapRule(name="r", networks=("10.1.2.4/32", "10.1.2.3/32")), {}, True),
        (TapRule(name="r", networks=("192.168.0.0/16", "fd00::/8")), {}, False),
        (TapRule(name="r", networks=("0.0.0.0/0", "::/0")), {"peer": "unix:"}, False),
        (TapRule(name="r", listeners=("main",), principals=("CN=b",)), {}, False),
    ],
)
def test_every_condition_of_a_rule_must_hold(rule: TapRule, facts: dict[str, Any], hits: bool) -> None:
    assert (match(rule, **facts) is not None) is hits
    assert match() is None


@each_of(
    ("peer", "address"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("[fd00::1]:80", "fd00::1"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("[fe80::1%eth0]:80", "fe80::1"),
        ("unix:/run/a", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses(peer: str | None, address: str | None) -> None:
    assert parse_address(peer) == (None if address is None else ipaddress.ip_address(address))


@each_of("share", [0.0, 0.01, 0.5, 1.0])
def test_sampling_takes_its_share_of_consecutive_connections_and_always_the_same_ones(share: float) -> None:
    rule = CompiledRule(TapRule(name="r", sample_connections=share))
    ids = [(3 << 57) | (9 << 29) | counter for counter in range(10_000)]
    taken = [rule.samples(connection) for connection in ids]
    assert abs(sum(taken) - share * len(ids)) <= 0.005 * len(ids)
    assert taken == [rule.samples(connection) for connection in ids]


@each_of(
    ("rules", "part"),
    [
        ((TapRule(name="r", apis=("Fetsch",)),), "r: not a Kafka API"),
        ((TapRule(name="r", blank=("5-4",)),), "r: not a range of bytes"),
        ((TapRule(name="r", blank=("0-9",), hash=("9-10",)),), "r: bytes are in two ranges"),
        ((TapRule(name="r", min_size=2, max_size=1),), "r: min_size is above max_size"),
        ((TapRule(name="r", networks=("banana",)),), "r: 'banana'"),
        ((TapRule(name="r"), TapRule(name="s"), TapRule(name="r")), "r: is the name of two rules"),
    ],
)
def test_rules_that_cannot_be_are_refused_by_name_before_they_do_anything(rules: tuple[TapRule, ...], part: str) -> None:
    writer = writer_in()
    with pytest.raises(ValueError, match=part):
        TapRules(rules, writer)
    assert (writer.watched, writer.builder.chunk_count) == ({}, 0)


START_NS = 1_700_000_000_000_000_000


def kinds(folder: Path) -> list[tuple[str, str | None]]:
    """Kind and rule of every row; of a rules row, the names."""
    found: list[tuple[str, str | None]] = []
    for block in read_blocks(str(folder), "n.0.b"):
        for row in block.rows:
            word = block.word(row.rule)
            if KINDS[row.kind] == "rules":
                word = ",".join(rule["name"] for rule in json.loads(word or ""))
                assert (row.frame_count, row.lost_frames, row.data_length, row.connection, row.listener) == (0, 0, 0, -1, -1)
            found.append((KINDS[row.kind], word))
    return found


def append(rules: TapRules, number: int, at_ns: int = START_NS) -> None:
    tap = rules.match("main", "framed", DIRECTION_REQUEST, None, None, 7)
    assert tap is not None
    tap.append(run_of([b"x"]), number, at_ns)


def test_a_stream_begins_with_its_rules_and_no_stream_does_for_rules_alone(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    rules = TapRules((TapRule(name="a"), TapRule(name="b", directions=("response",))), writer)
    rules.begin(START_NS + 5)
    assert writer.poll_due(1) == 0
    append(rules, 0)
    append(rules, 1)
    assert writer.flush_and_close(1000)
    assert kinds(tmp_path) == [("rules", "a,b"), ("frames", "a"), ("frames", "a"), ("totals", None)]
    times = [row.capture_ns for block in read_blocks(str(tmp_path), "n.0.b") for row in block.rows]
    assert times == sorted(times)
    quiet = writer_in(tmp_path / "quiet")
    TapRules((TapRule(name="a"),), quiet).begin(START_NS)
    assert quiet.flush_and_close(1000)
    assert not (tmp_path / "quiet").exists()


def test_a_stream_of_which_all_was_lost_begins_with_its_rules(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    rules = TapRules((TapRule(name="a", sample_connections=0.0),), writer)
    rules.begin(START_NS)
    append(rules, 0)
    assert writer.flush_and_close(1000)
    assert kinds(tmp_path) == [("rules", "a"), ("gap", "a"), ("totals", None)]


def test_rules_whose_row_the_disk_refused_are_said_again(tmp_path: Path) -> None:
    disk = FakeDisk()
    writer = writer_in(tmp_path, disk)
    rules = TapRules((TapRule(name="a"),), writer)
    rules.begin(START_NS)
    append(rules, 0)
    disk.broken = 28
    writer.poll_due(1)
    writer.poll_due(1 << 60)
    writer.write_queued()
    disk.broken = 0
    writer.poll_due(1 << 61)
    writer.poll_due(1 << 62)
    writer.write_queued()
    append(rules, 1)
    assert writer.flush_and_close(1000)
    said = kinds(tmp_path)
    assert said[0] == ("rules", "a")
    assert sorted({item for item in said[1:] if item[0] != "totals"}) == [("frames", "a"), ("gap", "a")]


def test_rules_that_change_begin_their_window_and_later_times_only(tmp_path: Path) -> None:
    minute = 60_000_000_000
    writer = writer_in(tmp_path)
    rules = TapRules((TapRule(name="a"),), writer)
    rules.begin(START_NS)
    append(rules, 0, START_NS + 10)
    TapRules((), writer).begin(START_NS + 5)  # a clock that was set back a little
    rules.begin(START_NS + minute)
    append(rules, 1, START_NS + minute)
    assert writer.flush_and_close(1000)
    rows = [(row.capture_ns - START_NS, KINDS[row.kind]) for block in read_blocks(str(tmp_path), "n.0.b") for row in block.rows]
    assert [item for item in rows if item[1] != "totals"] == [(10, "rules"), (10, "frames"), (10, "rules"), (minute, "rules"), (minute, "frames")]
    assert len(rows) == 7


def test_each_rule_expires_once(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    rules = TapRules(
        (TapRule(name="a", expires_ns=200), TapRule(name="b"), TapRule(name="c", expires_ns=100), TapRule(name="d", expires_ns=100)), writer
    )
    assert [rules.expire(now_ns) for now_ns in (1, 99, 100, 101, 199, 250, 251, 1 << 62)] == [False, False, True, False, False, True, False, False]
    assert not TapRules((TapRule(name="b"),), writer).expire(1 << 62)


def test_the_text_of_rules_is_canonical(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    wanted = (TapRule(name="b", apis=("Fetch",), expires_ns=5), TapRule(name="a"))
    text = TapRules(wanted, writer).text
    assert [rule["name"] for rule in json.loads(text)] == ["b", "a"]
    assert json.loads(text)[0].keys() == {field.name for field in dataclasses.fields(TapRule)}
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@each_of(
    ("rules", "facts", "by"),
    [
        ((), {}, None),
        ((TapRule(name="all"),), {}, "all"),
        ((TapRule(name="none", sample_connections=0.0), TapRule(name="all")), {}, "none"),
        ((TapRule(name="x", listeners=("x",)), TapRule(name="answers", directions=("response",))), {}, "answers"),
        ((TapRule(name="nothing", directions=()),), {}, None),
        ((TapRule(name="a", principals=("CN=a",)),), {}, "a"),
        ((TapRule(name="a", principals=("CN=a",)),), {"principal": None}, None),
        ((TapRule(name="ten", networks=("10.0.0.0/8",)),), {}, "ten"),
        ((TapRule(name="ten", networks=("10.0.0.0/8",)),), {"peer": "11.0.0.1:1"}, None),
        ((TapRule(name="kafka", apis=("Produce",)),), {}, None),
        ((TapRule(name="kafka", apis=("Produce",)),), {"protocol": "kafka"}, "kafka"),
        ((TapRule(name="over", expires_ns=5), TapRule(name='"q" ü')), {}, '"q" ü'),
    ],
)
def test_the_end_of_a_connection_is_recorded_if_a_rule_in_force_applies_to_either_direction(
    rules: tuple[TapRule, ...], facts: dict[str, Any], by: str | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = writer_in(Path(folder))
        found = TapRules(rules, writer)
        found.expire(5)
        place: dict[str, Any] = {"listener": "main", "protocol": "framed", "principal": "CN=a", "peer": "10.1.2.3:55"} | facts
        found.note_end('{"id": "0-1-7"}', **place, connection=7, opened_ns=10, closed_ns=20)
        assert writer.flush_and_close(1000)
        assert list(read_ends(folder)) == ([] if by is None else [{"tap_rule": by, "id": "0-1-7"}])
