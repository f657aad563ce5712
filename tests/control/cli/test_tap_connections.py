"""The connections of a log as ``tap replay`` and ``tap export`` see them."""

import shutil
from pathlib import Path

from framegate.control.cli.tap_connections import REQUEST, RESPONSE, Capture, fault_of, header_of
from framegate.control.cli.tap_records import Wanted
from framegate.proxy.config.model import TapRule
from framegate.proxy.network.framings import FRAMINGS
from tests.fakes.captured import kafka_log, plain_log
from tests.fakes.tap_log import START_NS, FakeProcessor


def capture(root: Path, **wanted: int) -> Capture:
    return Capture([str(root)], [], Wanted(**wanted))  # type: ignore[arg-type]


def test_none_follows_the_last_frame_of_each_connection(tmp_path: Path) -> None:
    found = capture(kafka_log(tmp_path, exchanges=5, connections=2, apart_ms=1))
    assert [(item.stored, item.after, item.first, item.kafka, item.peer) for item in found.connections.values()] == [
        ([3, 3], [3, 3], [0, 0], True, "10.0.0.1:1"),
        ([2, 2], [2, 2], [0, 0], True, "10.0.0.1:2"),
    ]
    order = [(connection.id, None if frame is None else frame.row.direction) for connection, frame in found.frames()]
    assert order == [(1, 0), (1, 1), (2, 0), (2, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, None), (1, 0), (1, 1), (1, None)]


def test_what_is_written_between_the_two_readings_is_not_there(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path)
    log.block([b"first"])
    found = capture(tmp_path)
    log.block([b"second"])
    other = FakeProcessor(tmp_path, boot_id="b1")
    other.block([b"third"], connection=2)
    assert [frame and bytes(frame.kept) for _, frame in found.frames()] == [b"first", None]
    log.close()
    other.close()


def test_connections_end_even_if_their_rest_was_deleted_between_the_two_readings(tmp_path: Path) -> None:
    found = capture(plain_log(tmp_path, [b"first"]))
    (stream,) = tmp_path.glob("edge.*")
    shutil.rmtree(stream)
    assert [frame for _, frame in found.frames()] == [None]


def test_frames_that_neither_a_row_nor_a_gap_has_are_counted_by_their_numbers(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path, flush_size=64 << 10, queue_size=64 << 10)
    for first in (2, 5):
        log.sent[1, "request"] = first
        log.send([b"x"])
    for _ in range(4):
        log.send([bytes(40_000)])
    log.flush()
    log.send([b"last"], at_ns=START_NS + 1)
    log.flush()
    log.close()
    (connection,) = capture(tmp_path).connections.values()
    (lost,) = connection.lost[REQUEST]
    assert (connection.stored[REQUEST], lost.frames, lost.reason, connection.lost[RESPONSE]) == (7 - lost.frames, lost.frames, "queue_full", [])
    assert (connection.unrecorded(REQUEST), connection.unrecorded(REQUEST, 2), connection.unrecorded(RESPONSE)) == (4, 2, 0)


def test_an_empty_body_is_whole_whatever_the_rule_keeps(tmp_path: Path) -> None:
    for index, rule in enumerate((TapRule(name="r", capture="lengths"), TapRule(name="r", max_frame_bytes=1), TapRule(name="r"))):
        root = plain_log(tmp_path / str(index), [b""], rule)
        assert {fault_of(frame) for _, frame in capture(root).frames() if frame is not None} == {""}, rule


def test_the_rest_of_a_header_is_kept_where_the_other_framing_has_as_much() -> None:
    grpc, mysql, plain = (FRAMINGS[name] for name in ("grpc_message", "mysql_packet", "int32"))
    body = b"\x01body"
    assert header_of(grpc, grpc, 5, body) == b"\x01\0\0\0\x04"
    assert header_of(grpc, mysql, 5, body) == b"\x04\0\0\x01"
    assert header_of(grpc, plain, 5, body) == b"\0\0\0\x04"
    assert header_of(plain, grpc, 5, b"abcde") == b"\0\0\0\0\x05"
    assert header_of(mysql, mysql, 5, b"") == b"\x04\0\0\0"


def test_connections_are_open_from_their_first_to_their_last_row(tmp_path: Path) -> None:
    for name, order, most in (("none", "", 0), ("after", "1122", 1), ("within", "122131", 2), ("all", "123123", 3)):
        log = FakeProcessor(tmp_path / name)
        for number, connection in enumerate(map(int, order)):
            log.send([b"x"], connection=connection, at_ns=START_NS + number)
        log.flush()
        log.close()
        assert capture(tmp_path / name).most_open() == most, name
