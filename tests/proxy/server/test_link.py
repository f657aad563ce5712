"""The link's codec and hand-over, over real socketpairs."""

import os
import resource
import socket
from array import array

import pytest

from proxy.server.link import MAX_FRAME, MAX_TOGETHER, Handover, LinkError, LinkReader, LinkWriter, encode, receive_handovers, send_handovers

HANDOVER = Handover(123, socket.AF_INET, "kafka", "unix:/tmp/a b")


@pytest.fixture
def pair():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.setblocking(False)
    right.setblocking(False)
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def packets():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.setblocking(False)
    right.setblocking(False)
    yield left, right
    left.close()
    right.close()


def test_a_frame_is_a_length_and_compact_json():
    assert encode({"type": "list", "id": 1}) == b"\x00\x00\x00\x16" + b'{"type":"list","id":1}'


def test_messages_come_out_byte_by_byte_and_all_at_once():
    messages = [{"type": "start", "name": "Zürich"}, {"type": "x", "rows": [1, [2]]}, {"type": "y"}]
    data = b"".join(encode(message) for message in messages)
    slow, out = LinkReader(), []
    for index in range(len(data)):
        out += slow.feed(data[index : index + 1])
    assert out == messages == LinkReader().feed(data)
    assert slow.pending == 0


def test_lines_come_behind_their_message():
    lines = ['5 {"detail": "a b"}', "6 Zürich"]
    assert LinkReader().feed(encode({"type": "closed"}, lines) + encode({"type": "closed"})) == [
        {"type": "closed", "rows": lines},
        {"type": "closed"},
    ]


def test_a_begun_frame_waits():
    reader = LinkReader()
    assert reader.feed(encode({"type": "x"})[:-1]) == []
    assert reader.pending == 15


@pytest.mark.parametrize("data", [(MAX_FRAME + 1).to_bytes(4, "big"), b"\0\0\0\x02[]", b"\0\0\0\x01{", b"\0\0\0\x02{}", b'\0\0\0\x0e{"type":"x"}{}'])
def test_a_stream_out_of_step_is_an_error(data):
    with pytest.raises(LinkError):
        LinkReader().feed(data)


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


def test_a_hand_over_carries_one_working_descriptor(packets):
    left, right = packets
    ours, theirs = socket.socketpair()
    assert send_handovers(left, [HANDOVER], [theirs.fileno()])
    theirs.close()
    ((handover, descriptor),) = receive_handovers(right)
    assert handover == HANDOVER
    with socket.socket(fileno=descriptor) as taken:
        assert not taken.get_inheritable()
        taken.sendall(b"hello")
        assert ours.recv(5) == b"hello"
    ours.close()
    assert receive_handovers(right) == []


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


def test_a_full_hand_over_queue_is_said(packets):
    left, _ = packets
    with socket.socket() as sock:
        sent = 0
        while send_handovers(left, [HANDOVER], [sock.fileno()]):
            sent += 1
    assert sent > 0


def test_the_end_of_the_hand_over_socket_is_said(packets):
    left, right = packets
    left.close()
    with pytest.raises(EOFError):
        receive_handovers(right)


def test_a_lost_descriptor_is_said(packets):
    left, right = packets
    left.send(b"123 2 kafka unix:/tmp/a b")
    assert receive_handovers(right) == [(HANDOVER, -1)]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b"1", 1),
        (b"1 2 three", 1),
        (b"x 2 a b", 1),
        (b"1 y a b", 1),
        (b"\xff 2 a b", 1),
        (b"1 2 a b", 2),
        (b"1 2 a", 0),
        (b"1 2 a " + b"x" * 11000, 1),
        (b"1 2 a b\n1 2 a b", 3),
        (b"1 2 a b\n1 2 a", 2),
        (b"1 2 a b\n", 1),
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


def test_half_a_surrogate_pair_arrives_as_it_was() -> None:
    (message,) = LinkReader().feed(encode({"type": "closed", "text": "\udcff"}))
    assert message["text"] == "\udcff"


def test_a_frame_that_is_nested_too_deep_is_out_of_step() -> None:
    body = b"[" * 200_000
    with pytest.raises(LinkError):
        LinkReader().feed(len(body).to_bytes(4, "big") + body)
