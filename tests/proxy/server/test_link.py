"""The link's codec and hand-over, over real socketpairs."""

import json
import os
import resource
import socket
from array import array
from typing import Any, cast

import pytest

from framegate.proxy.server.link import (
    MAX_FRAME,
    MAX_TOGETHER,
    Handover,
    LinkError,
    LinkReader,
    LinkWriter,
    decode_row,
    encode,
    receive_handovers,
    send_handovers,
    split_line,
)
from framegate.proxy.server.rows import LEFT_OUT, RESTORED, ClosedRow
from tests.fakes.cases import each_of
from tests.fakes.rows import access_row, closed_row, decode_line, line_of, opened_row

HANDOVER = Handover(123, socket.AF_INET, "kafka", "unix:/tmp/a b")


def sockets(kind: int):
    left, right = socket.socketpair(socket.AF_UNIX, kind)
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


@pytest.fixture
def pair():
    yield from sockets(socket.SOCK_STREAM)


@pytest.fixture
def packets():
    yield from sockets(socket.SOCK_SEQPACKET)


def test_a_frame_is_a_length_and_compact_json():
    assert encode({"type": "list", "id": 1}) == b"\x00\x00\x00\x16" + b'{"type":"list","id":1}'


def test_messages_come_out_byte_by_byte_and_all_at_once_and_a_begun_one_waits():
    messages = [{"type": "start", "name": "Zürich"}, {"type": "x", "rows": [1, [2]]}, {"type": "y"}]
    data = b"".join(encode(message) for message in messages)
    slow, out = LinkReader(), []
    for index in range(len(data)):
        out += slow.feed(data[index : index + 1])
    assert out == messages == LinkReader().feed(data)
    assert slow.pending == 0
    assert slow.feed(encode({"type": "x"})[:-1]) == []
    assert slow.pending == 15


def test_lines_come_after_their_message():
    lines = ['5 {"detail": "a b"}', "6 Zürich"]
    found = LinkReader().feed(encode({"type": "closed"}, lines) + encode({"type": "closed", "text": "\udcff"}))
    assert found == [{"type": "closed", "rows": lines}, {"type": "closed", "text": "\udcff"}]


@each_of("body", [b"[]", b"{", b"{}", b'{"type":"x"}{}', b"[" * 200_000, None])
def test_a_stream_out_of_step_is_an_error(body):
    header = MAX_FRAME + 1 if body is None else len(body)
    with pytest.raises(LinkError):
        LinkReader().feed(header.to_bytes(4, "big") + (body or b""))


def test_what_the_socket_refuses_waits_in_order(pair):
    left, right = pair
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer, reader, out = LinkWriter(left, row_bytes=1000), LinkReader(), []
    for number in range(200):
        writer.send({"type": "result", "id": number, "pad": "x" * 200})
    assert writer.pending > 1000
    assert not writer.offer({"type": "log"})
    assert writer.dropped_count == 1
    while writer.pending:
        out += reader.feed(right.recv(65536))
        writer.flush()
    assert writer.offer({"type": "log"})
    out += reader.feed(right.recv(65536))
    assert [message.get("id") for message in out] == [*range(200), None]


def test_what_is_queued_goes_out_together(pair):
    ours, theirs = pair
    writer = LinkWriter(ours)
    messages = [{"type": "closed", "row": {"id": number}} for number in range(3)]
    for message in messages:
        writer.queue(message)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    assert writer.flush()
    assert LinkReader().feed(theirs.recv(65536)) == messages


@pytest.mark.parametrize("count", [1, 2, MAX_TOGETHER - 1, MAX_TOGETHER])
def test_several_hand_overs_in_one_message_keep_their_order_and_their_descriptors(packets, count):
    left, right = packets
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    pairs = [socket.socketpair() for _ in range(count)]
    longest = "unix:" + "\\xff" * 108
    handovers = [Handover(10**19 + number, socket.AF_UNIX, "l" * 63, longest) for number in range(count)]
    assert send_handovers(left, handovers, [theirs.fileno() for _, theirs in pairs])
    received = receive_handovers(right)
    assert [handover for handover, _ in received] == handovers
    for (ours, theirs), (_, descriptor) in zip(pairs, received, strict=True):
        theirs.close()
        with socket.socket(fileno=descriptor) as taken:
            assert not taken.get_inheritable()
            taken.sendall(b"%d" % descriptor)
            assert ours.recv(20) == b"%d" % descriptor
        ours.close()
    assert receive_handovers(right) == []


@pytest.mark.parametrize("there", [0, 1, 2, 3])
def test_of_several_hand_overs_the_last_may_lose_their_descriptors(packets, there):
    """The kernel gives as many as this process may have."""
    left, right = packets
    handovers = [Handover(number, socket.AF_INET, "kafka", "192.0.2.1:1") for number in range(3)]
    ours, theirs = socket.socketpair()
    spare = [os.dup(theirs.fileno()) for _ in range(there)]
    assert send_handovers(left, handovers, [theirs.fileno()] * 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))  # the highest is that of the list itself
    taken = [os.dup(theirs.fileno()) for _ in range(room_below(theirs.fileno()))]
    for descriptor in spare:
        os.close(descriptor)
    try:
        received = receive_handovers(right)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [handover for handover, _ in received] == handovers
    assert [descriptor >= 0 for _, descriptor in received] == [True] * there + [False] * (3 - there)
    for descriptor in (*taken, *(descriptor for _, descriptor in received if descriptor >= 0)):
        os.close(descriptor)
    ours.close()
    theirs.close()


def room_below(descriptor: int) -> int:
    """How many descriptors this process may still have."""
    made = []
    try:
        while True:
            made.append(os.dup(descriptor))
    except OSError:
        return len(made)
    finally:
        for one in made:
            os.close(one)


def test_a_full_queue_a_lost_descriptor_and_the_end_of_the_socket_are_reported(packets):
    left, right = packets
    left.send(b"123 2 -1 kafka unix:/tmp/a b")
    assert receive_handovers(right) == [(HANDOVER, -1)]
    with socket.socket() as sock:
        sent = 0
        while send_handovers(left, [HANDOVER], [sock.fileno()]):
            sent += 1
    assert sent > 0
    left.close()
    for _ in range(sent):
        os.close(receive_handovers(right)[0][1])
    with pytest.raises(EOFError):
        receive_handovers(right)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"1", 1),
        (b"1 2 three", 1),
        (b"x 2 3 a b", 1),
        (b"1 y 3 a b", 1),
        (b"1 2 y a b", 1),
        (b"\xff 2 3 a b", 1),
        (b"1 2 3 a b", 2),
        (b"1 2 3 a", 0),
        (b"1 2 3 a " + b"x" * 11000, 1),
        (b"1 2 3 a b\n1 2 3 a b", 3),
        (b"1 2 3 a b\n1 2 3 a", 2),
        (b"1 2 3 a b\n", 1),
    ],
)
def test_a_bad_hand_over_leaks_no_descriptor(packets, body, count):
    left, right = packets
    ours, theirs = socket.socketpair()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs.fileno()] * count))] if count else []
    left.sendmsg([body], ancillary)
    theirs.close()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LinkError):
        receive_handovers(right)
    assert len(os.listdir("/proc/self/fd")) == before
    if count:
        assert ours.recv(1) == b""
    ours.close()


# Lines of rows.


def sent_lines(*rows: ClosedRow) -> list[str]:
    (message,) = LinkReader().feed(encode({"type": "closed"}, [line_of(row, 123) for row in rows]))
    lines: list[str] = message["rows"]
    return lines


def test_rows_arrive_as_the_log_prints_them_and_as_objects() -> None:
    rows = [closed_row(id=(3 << 57) + (5 << 29) + number, peer="unix:a b", detail='said "no"\nand went') for number in (1, 2)]
    for line, row, shown in zip(sent_lines(*rows), rows, ("3-5-1", "3-5-2"), strict=True):
        accepted_ns, number, text = split_line("closed", line)
        assert (accepted_ns, number) == (123, row["id"])
        assert decode_row("closed", number, text) == row
        assert json.loads(text) == {**row, "id": shown}
        assert text.startswith('{"id":"3-5-')


def test_half_a_surrogate_pair_arrives_as_it_was_and_keeps_no_other_row_back() -> None:
    """A peer's name may hold bytes that are no UTF-8."""
    first, second = sent_lines(closed_row(peer="unix:\udc80"), closed_row())
    assert decode_line(first) == closed_row(peer="unix:\udc80")
    assert decode_line(second) == closed_row()


@each_of("line", ["", "1 2", "x 2 {}", "1 y {}", '1 2 {"', "1 2 []", "1 2 {}", "1 2 5", '1 2 "}'])
def test_what_is_no_line_is_an_error(line: str) -> None:
    with pytest.raises(LinkError, match="the closed row cannot be read"):
        split_line("closed", line)


@each_of("text", ['{"id": 1, }', '{"id": 1} {}', '{"id": {}', "[{}]", '{"' + "a" * 10])
def test_what_is_no_row_is_an_error_for_who_reads_it(text: str) -> None:
    with pytest.raises(LinkError, match="the closed row cannot be read"):
        decode_row("closed", 1, text)


def test_what_a_line_leaves_out_is_there_for_who_reads_it() -> None:
    lost = {"bytes": 0, "request": 0, "response": 0}
    nothing = {
        "principal": "ANONYMOUS",
        "mechanism": None,
        "tls": None,
        "handshake_ns": None,
        "state": "half_closed",
        "detail": "",
        "lost": lost,
        "mutes": {},
    }
    for attempts, connect_ns, parts in ((1, 7, (9, 7, 0, 0)), (1, None, (None,) * 4), (0, None, (None,) * 4), (2, 7, (None,) * 4)):
        row = closed_row(attempts=attempts, connect_ns=connect_ns, connect_started_ns=9)
        told = {name for name, usual in (("attempts", 1), ("connect_ns", None)) if row[name] != usual}
        (line,) = sent_lines(cast(ClosedRow, {name: value for name, value in row.items() if name not in {*LEFT_OUT} - told}))
        attempt = zip(("attempt_started_ns", "tcp_ns", "tls_ns", "login_ns"), parts, strict=True)
        assert decode_line(line) == {**row, **nothing, **dict(attempt)}, (attempts, connect_ns)


def test_times_of_a_line_are_counted_from_the_begin_of_the_connection() -> None:
    row = closed_row(opened_ns=10**18, connect_started_ns=10**18 + 3, closed_ns=10**18 + 5_000_001, duration_ms=5.000001)
    short: Any = {name: value for name, value in row.items() if name not in RESTORED}
    assert decode_line(*sent_lines({**short, "connect_after_ns": 3})) == row
    assert decode_line(*sent_lines(short))["connect_started_ns"] is None


@each_of("key", sorted(ClosedRow.__required_keys__ - {"id", *LEFT_OUT, *RESTORED}))
def test_a_row_that_lacks_a_key_is_refused_with_its_name(key: str) -> None:
    row: Any = {name: value for name, value in closed_row().items() if name != key}
    with pytest.raises(LinkError, match=rf"cannot be read: closed\.{key} is missing$"):
        decode_line(*sent_lines(row))


@each_of(
    ("changes", "text"),
    [
        ({"listener": None}, "closed.listener must be str, not null"),
        ({"closed_ns": 1.5}, "closed.closed_ns must be int, not float"),
        ({"closed_ns": True}, "closed.closed_ns must be int, not bool"),
        ({"lost": {"bytes": 1, "request": 1}}, "closed.lost.response is missing"),
        ({"frames": {"request": "1", "response": 1}}, "closed.frames.request must be int or null, not str"),
        ({"tls": []}, "closed.tls must be an object, not list"),
        ({"mutes": {"peer": {"count": 1}}}, "closed.mutes.peer.ns is missing"),
        ({"state_at_end": "open"}, "closed.state_at_end is not known"),
    ],
)
def test_a_row_with_something_else_in_it_is_refused_with_its_name(changes: dict[str, Any], text: str) -> None:
    row: Any = {**closed_row(), **changes}
    with pytest.raises(LinkError) as caught:
        decode_line(*sent_lines(row))
    assert str(caught.value) == f"the closed row cannot be read: {text}"


def test_each_notice_has_its_own_row() -> None:
    rows: dict[str, Any] = {"opened": opened_row(), "access": access_row(), "closed": closed_row()}
    for event, row in rows.items():
        assert decode_line(line_of(row, 1), event) == row
        for other in rows.keys() - {event}:
            with pytest.raises(LinkError, match=f"the {other} row cannot be read: {other}"):
                decode_line(line_of(row, 1), other)
