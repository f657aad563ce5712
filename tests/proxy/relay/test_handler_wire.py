"""The records between a processor and a handler process: their bytes, written out here, and everything that cannot be one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import RecordReader, WireError
from tests.fakes.cases import each_of
from tests.fakes.handler_process import whole_records

FACTS: wire.Facts = {
    "id": "0-1-7",
    "listener": "kafka",
    "peer": "127.0.0.1:5",
    "principal": "User:Zürich",
    "principal_type": "User",
    "tls": {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"},
    "upstream": True,
}
HELLO: wire.Hello = {"wire": 4, "slot": 3, "handlers": {"kafka": {"directions": ["request"]}}}
HUGE = (1 << 63) - 5
NUMBERS = st.integers(0, (1 << 63) - 1)


def u(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big")


def framed(body: bytes) -> bytes:
    return u(len(body), 4) + body


def request(connection: int, direction: int, sequence: int, header: bytes, body: bytes) -> bytes:
    return framed(u(2, 1) + u(direction, 1) + u(len(header), 2) + u(connection, 8) + u(sequence, 8) + header + body)


def reply(action: int, direction: int, throttle_ms: int, connection: int, sequence: int, began_ns: int, ended_ns: int, body: bytes) -> bytes:
    head = u(4, 1) + u(action, 1) + u(direction, 1) + u(0, 1) + u(throttle_ms, 4)
    return framed(head + u(connection, 8) + u(sequence, 8) + u(began_ns, 8) + u(ended_ns, 8) + body)


def whole(data: bytes) -> int:
    """The end of one whole record, nothing behind it."""
    end = wire.record_end(data, 0)
    assert end == len(data)
    return end


# Each record against its text.


def test_the_records_without_a_frame():
    assert (wire.HELLO, wire.OPEN, wire.REQUEST, wire.CLOSED, wire.REPLY, wire.SEND) == (0, 1, 2, 3, 4, 5)
    assert (wire.PASS, wire.FRAME, wire.NOTHING, wire.ANSWER, wire.CLOSE, wire.FAILED) == (0, 1, 2, 3, 4, 5)
    assert (wire.ACTIONS[wire.FRAME], wire.DIRECTIONS) == ("frame", ("request", "response"))
    data = wire.encode_open(HUGE, FACTS)
    assert (data[4:13], json.loads(data[13:])) == (u(1, 1) + u(HUGE, 8), FACTS)
    assert wire.read_open(data, 0, whole(data)) == (HUGE, FACTS)
    closed = wire.encode_closed(HUGE)
    assert closed == framed(u(3, 1) + u(HUGE, 8))
    whole(closed)
    assert wire.read_closed(closed, 0) == HUGE
    hello = wire.encode_hello(HELLO)
    assert (hello[4:5], json.loads(hello[5:])) == (b"\0", HELLO)
    assert wire.read_hello(hello, 0, whole(hello)) == HELLO


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 1), NUMBERS, st.binary(max_size=9), st.binary(max_size=400)), max_size=8), st.binary(max_size=50))
def test_requests_are_written_one_by_one_and_read_together(frames, before):
    data = before
    for frame in frames:
        connection, direction, sequence, header, body = frame
        record = wire.request_head(direction, len(header), connection, sequence, len(body)) + header + body
        assert (record, whole(record)) == (request(*frame), len(record))
        data += record
    found = wire.read_requests(data, len(before))
    assert [request[:5] for request in found] == frames
    assert found[-1:] == [] or found[-1][5] == len(data)
    for cut in range(1, 25):
        assert len(wire.read_requests(data[:-cut], len(before))) == max(0, len(frames) - 1) or cut > len(data[len(before) :])


@each_of(
    "other",
    [
        framed(u(3, 1) + u(1, 8)) + bytes(30),
        request(1, 2, 0, b"", b""),
        framed(u(2, 1) + u(0, 1) + u(5, 2) + bytes(16) + b"head"),
        framed(u(2, 1) + bytes(18)) + bytes(30),
        b"\xff\xff\xff\xff\x02" + bytes(40),
        b"\x80\0\0\0\x02" + bytes(40),
    ],
)
def test_requests_are_read_up_to_what_is_none(other):
    good = request(1, 0, 7, b"", b"x")
    assert wire.read_requests(good + other + good, 0) == [(1, 0, 7, b"", b"x", len(good))]
    assert wire.read_requests(other, 0) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 1), st.integers(0, wire.MAX_THROTTLE_MS), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=99)
        ),
        max_size=8,
    )
)
def test_replies_are_written_together_and_read_one_by_one(replies):
    replies = [(*each[:7], b"" if each[0] in (wire.PASS, wire.NOTHING, wire.CLOSE) else each[7]) for each in replies]
    data = wire.encode_replies(replies)
    assert data == b"".join(reply(*each) for each in replies)
    position = 0
    for each in replies:
        end = wire.record_end(data, position)
        *facts, begin = wire.read_reply(data, position, end)
        assert (*facts, data[begin:end]) == each
        position = end


@each_of("size", [16_383 - 40, 16_384 - 40, 16_385 - 40, 100_000])
def test_long_replies_are_written_in_their_place(size):
    replies = [(3, 0, 0, 1, index, 2, 3, body) for index, body in enumerate((b"a", b"b" * size, b"c" * size, b"d"))]
    assert wire.encode_replies(replies) == b"".join(reply(*each) for each in replies)


# What does not fit.


def test_the_longest_body_fits_whatever_its_head_is_and_one_byte_more_does_not():
    size = wire.request_head(0, wire.MAX_HEADER, 1, 0, wire.MAX_BODY)[:4]
    assert 0 < int.from_bytes(size, "big", signed=True) < 1 << 31
    for header, body in ((0, wire.MAX_BODY + 1), (wire.MAX_HEADER + 1, 0)):
        with pytest.raises(WireError, match="does not fit"):
            wire.request_head(0, header, 1, 0, body)


def test_an_error_is_cut_between_characters():
    assert wire.error_text("x") == b"x"
    assert wire.error_text("ü" * 512) == "ü".encode() * 512
    assert wire.error_text("x" + "ü" * 512) == b"x" + "ü".encode() * 511
    assert wire.error_text("\udc80") == b"\\udc80"


@each_of(
    ("data", "text"),
    [
        (framed(b"\x06"), "no record is of kind 6"),
        (b"GET / HTTP/1.1\r\n", "no record is of kind 47"),
        (framed(u(2, 1) + bytes(18)), "cannot have 19 bytes"),
        (framed(u(4, 1) + bytes(38)), "cannot have 39 bytes"),
        (framed(u(1, 1) + bytes(7)), "cannot have 8 bytes"),
        (framed(u(3, 1) + bytes(7)), "cannot have 8 bytes"),
        (framed(u(3, 1) + bytes(9)), "cannot have 10 bytes"),
        (framed(u(5, 1) + bytes(10)), "kind 5 cannot have 11 bytes"),
        (u(0, 4) + b"\0", "cannot have 0 bytes"),
        (b"\xff\xff\xff\xff\x02", "cannot have -1 bytes"),
        (b"\x80\0\0\0\x02", "cannot have -2147483648 bytes"),
    ],
)
def test_what_cannot_be_a_record_is_told_by_its_first_five_bytes(data, text):
    with pytest.raises(WireError, match=text):
        wire.record_end(data, 0)
    with pytest.raises(WireError, match=text):
        wire.record_end(b"??" + data[:5], 2)
    assert wire.record_end(data[:4], 0) == -1


@each_of(
    ("action", "direction", "body", "text"),
    [
        (7, 0, b"", "action 7 and direction 0"),
        (0, 2, b"", "action 0 and direction 2"),
        *((action, 0, b"x", "a body of 1 bytes") for action in (wire.PASS, wire.NOTHING, wire.CLOSE)),
        (wire.HELD, 0, bytes(7), "7 bytes that say how long"),
    ],
)
def test_a_reply_that_cannot_be(action, direction, body, text):
    data = reply(action, direction, 0, 1, 0, 0, 0, body)
    with pytest.raises(WireError, match=text):
        wire.read_reply(data, 0, whole(data))


@each_of("facts", [b"\xff", b"[]", b"[" * 100_000])
def test_facts_that_are_none_are_told(facts):
    data = framed(u(1, 1) + u(7, 8) + facts)
    with pytest.raises(WireError, match="OPEN"):
        wire.read_open(data, 0, whole(data))


@each_of(
    "wrong",
    [
        *({"slot": slot} for slot in (None, True)),
        *({"handlers": handlers} for handlers in ([], {"kafka": 1}, {"kafka": {}})),
        *({"handlers": {"kafka": {"directions": directions}}} for directions in ("request", [], ["sideways"])),
        *({"wire": version} for version in (1, None, 3)),
    ],
)
def test_first_words_that_are_none_are_told(wrong):
    data = framed(u(0, 1) + json.dumps({**HELLO, **wrong}).encode())
    with pytest.raises(WireError, match=r"HELLO has|version"):
        wire.read_hello(data, 0, whole(data))


# Reading, however the stream is cut.

STREAM = [
    wire.encode_open(7, FACTS),
    wire.request_head(0, 4, 7, 0, 5) + b"\0\0\0\5hello",
    wire.request_head(1, 0, 7, 0, 0),
    wire.encode_closed(7),
    wire.encode_replies([(wire.FRAME, 0, 0, 7, 0, 1, 2, b"x" * 300)]),
    wire.encode_hello(HELLO),
]


def test_records_come_out_at_every_split():
    stream = b"".join(STREAM)
    for cut in range(len(stream) + 1):
        reader = RecordReader()
        assert whole_records(reader, stream[:cut]) + whole_records(reader, stream[cut:]) == STREAM
        assert reader.missing == 1, "nothing is kept"


@given(st.lists(st.binary(max_size=300), max_size=12), st.data())
def test_records_come_out_however_they_are_cut(bodies, data):
    sent = [wire.request_head(0, 0, 1, index, len(body)) + body for index, body in enumerate(bodies)]
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, found = RecordReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += whole_records(reader, stream[start:end])
    assert found == sent


def test_a_long_record_is_put_together_once():
    body = bytes(range(256)) * 64
    stream = wire.request_head(0, 0, 1, 0, len(body)) + body
    reader = RecordReader()
    assert whole_records(reader, stream[:5]) == []
    assert reader.missing == len(stream) - 5
    for start in range(5, len(stream) - 1000, 1000):
        assert reader.take(stream[start : start + 1000]) == b""  # not even looked at
    start += 1000
    assert whole_records(reader, stream[start:]) == [stream]


def test_a_reader_may_stop_before_what_is_whole_and_keeps_nothing_of_what_was_read_to_its_end():
    first, second = STREAM[1], STREAM[2]
    reader = RecordReader()
    data = reader.take(first + second + b"\0")
    reader.keep(data, len(first))
    assert reader.missing == 0
    assert whole_records(reader, b"") == [second]
    assert reader.missing == 3
    reader = RecordReader()
    assert whole_records(reader, STREAM[0]) == [STREAM[0]]
    assert (reader.missing, reader.take(b"")) == (1, b"")
    assert whole_records(reader, b"\xff\xff\xff\xff") == []
    with pytest.raises(WireError):  # with the byte behind the size
        whole_records(reader, b"\2")


@each_of("direction", [0, 1])
def test_a_reply_that_waits_is_announced_and_asked_for(direction: int) -> None:
    body = bytes(wire.LONG + 1)
    data = wire.encode_replies([wire.held((wire.ANSWER, direction, 70, 9, 3, 4, 5, body))])
    assert wire.record_end(data, 0) == len(data)
    *said, begin = wire.read_reply(data, 0, len(data))
    assert said == [wire.HELD, direction, 0, 9, 3, 4, 5], "its throttle comes with it"
    assert wire.held_size(data, begin) == len(body)
    asked = wire.encode_send(9, direction)
    assert wire.record_end(asked, 0) == len(asked)
    assert wire.read_send(asked, 0) == (9, direction)


@each_of("size", [0, wire.LONG, wire.MAX_BODY + 1, (1 << 64) - 1])
def test_a_size_that_no_reply_waits_with(size: int) -> None:
    with pytest.raises(WireError, match=f"a reply of {size} bytes waits"):
        wire.held_size(size.to_bytes(8, "big"), 0)
