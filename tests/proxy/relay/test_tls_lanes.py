"""Lanes over TLS: records in pieces, alerts and key updates."""

import contextlib
import ctypes
import itertools
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from framegate.proxy.network import mute
from framegate.proxy.network.lanes import HAS_FAST_PATH
from tests.fakes.cases import each_of
from tests.fakes.crowd import set_send_buffer
from tests.fakes.lanes import SecureWorld, served
from tests.fakes.world import _is_shaken, frame

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


class Sender:
    """A client over memory BIOs, that sends when a test says so, and pieces of records."""

    def __init__(self, world: SecureWorld) -> None:
        self.world = world
        self.sock, self.pair = world.client()
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = world.contexts[0].wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock.setblocking(False)
        world.until(lambda: self.did(self.tls.do_handshake) is None)
        world.until(lambda: select.select([world.server], [], [], 0)[0])
        accepted, _ = world.server.accept()
        accepted.setblocking(False)
        self.upstream = world.contexts[1].wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        world.sockets.append(self.upstream)
        world.until(lambda: _is_shaken(self.upstream) and self.pair.state.value == "open")
        self.upstream.settimeout(2)
        for _ in range(3):
            self.sock.sendall(self.record(frame(b"ask")))
            assert world.read(self.upstream, 7) == frame(b"ask")
            self.upstream.sendall(frame(b"answer"))
            assert self.read(10) == frame(b"answer")
        assert served(world, self.pair.client)
        assert served(world, self.pair.upstream)

    def did(self, call: Callable[[], Any]) -> Any:
        """The result of a call; ``call`` if it needs more bytes. What it wrote is sent."""
        with contextlib.suppress(BlockingIOError):
            self.incoming.write(self.sock.recv(100_000))
        try:
            return call()
        except ssl.SSLWantReadError:
            return call
        finally:
            if self.outgoing.pending:
                self.sock.sendall(self.outgoing.read())

    def record(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def read(self, size: int) -> bytes:
        data: list[bytes] = []

        def more() -> bool:
            piece = self.did(lambda: self.tls.read(size))
            if isinstance(piece, bytes):
                data.append(piece)
            return len(b"".join(data)) >= size

        self.world.until(more)
        return b"".join(data)

    def passes(self, data: bytes) -> None:
        """Have these bytes of the connection arrive as one frame."""
        self.sock.sendall(data)
        assert self.world.read(self.upstream, 9) == frame(b"frame")

    def end(self) -> Any:
        """Close, and return the row."""
        for sock in (self.sock, self.upstream):
            sock.close()
        self.world.until(lambda: self.world.rows)
        return self.world.row


@each_of("version", ("1.2", "1.3"))
def test_a_record_in_pieces_is_held_and_the_lane_stays_open(make_secure, version: str):
    sender = Sender(make_secure("framed", version=version))
    world, pair = sender.world, sender.pair
    assert sender.tls.version() == f"TLSv{version}"
    whole = sender.record(frame(b"frame"))
    length = len(whole)
    sender.passes(whole)
    for cut in range(1, length):
        record, following = sender.record(frame(b"frame")), sender.record(frame(b"frame"))
        sender.sock.sendall(record[:cut])
        world.until(lambda held=record[:cut]: pair.client.channel.transport.native.held == held)
        sender.passes(record[cut:] + following[:cut])
        assert served(world, pair.client), cut
        sender.passes(following[cut:])
        assert served(world, pair.client), cut
    row = sender.end()
    assert row["frames"] == {"request": 4 + 2 * (length - 1), "response": 3}


def test_what_python_reads_begins_with_what_the_lane_holds(make_secure):
    sender = Sender(make_secure("framed"))
    record, following = sender.record(frame(b"frame")), sender.record(frame(b"frame"))
    sender.sock.sendall(record + following[:7])
    assert sender.world.read(sender.upstream, 9) == frame(b"frame")
    sender.pair.client.channel.mute(mute.ADMIN)
    sender.pair.client.channel.unmute(mute.ADMIN)
    assert not served(sender.world, sender.pair.client)
    sender.passes(following[7:])


@each_of(
    ("damage", "reason"),
    [
        (lambda record: record[:-1] + bytes([record[-1] ^ 1]), "decryption_failed_or_bad_record_mac"),
        (lambda record: b"GET / HTTP/1.1", "wrong_version_number"),
        (lambda record: b"\x17\x03\x03\xff\xff", "packet_length_too_long"),
    ],
)
def test_a_record_that_openssl_refuses_closes_with_its_alert_after_what_was_before_it(make_secure, damage: Callable[[bytes], bytes], reason: str):
    sender = Sender(make_secure("framed"))
    before = sender.record(frame(b"frame"))
    sender.passes(before + damage(sender.record(frame(b"never"))))
    with pytest.raises(ssl.SSLError, match="ALERT"):
        sender.read(1)
    row = sender.end()
    assert (row["cause"], row["side"], row["frames"]["request"]) == ("tls_failed", "downstream", 4)
    assert reason in row["detail"]


def test_a_close_notify_behind_frames_is_the_end_after_them(make_secure):
    sender = Sender(make_secure("framed"))
    record = sender.record(frame(b"frame"))
    with contextlib.suppress(ssl.SSLWantReadError):
        sender.tls.unwrap()
    sender.passes(record + sender.outgoing.read())
    assert sender.world.ended(sender.upstream) == b""
    sender.upstream.sendall(frame(b"late"))
    assert sender.read(8) == frame(b"late")
    assert sender.end()["frames"] == {"request": 4, "response": 4}


def key_update(tls: Any, *, asks: bool) -> None:
    """Have a key update leave before the next record. Python has no call for it, so the pointer is taken from the object as C takes it."""
    inner = tls._sslobj
    pointer = ctypes.c_void_p.from_address(id(inner) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
    assert ctypes.CDLL(ssl._ssl.__file__).SSL_key_update(pointer, int(asks)) == 1


def test_a_flood_of_key_updates_is_read_in_small_portions_and_others_are_not(make_secure):
    """They take a hundred times as long as plaintext."""
    sender = Sender(make_secure("framed"))
    world, channel = sender.world, sender.pair.client.channel

    def portions(data: bytes) -> list[int]:
        """What is read of it in a poll each."""
        world.selector.settle()
        sender.sock.sendall(data)
        begin, read = channel.transport.wire_received, [0]
        while read[-1] < len(data):
            world.poll(1)
            world.selector.settle()
            read.append(channel.transport.wire_received - begin)
        return [later - before for before, later in itertools.pairwise(read)]

    read = portions(b"".join(sender.record(frame(bytes(4))) for _ in range(5000)))
    assert (read[:2], 16_384 < max(read) <= 65_536) == ([4096, 16_384], True)
    assert world.read(sender.upstream, 40_000) == frame(bytes(4)) * 5000
    updates = b""
    for _ in range(4000):
        key_update(sender.tls, asks=False)
        sender.tls.do_handshake()
        updates += sender.outgoing.read()
    read = portions(updates)
    assert 16_384 < read[0] <= 65_536
    assert max(read[1:]) == 4096
    sender.passes(sender.record(frame(b"frame")))
    assert sender.end()["frames"]["request"] == 5004


def test_a_key_update_is_answered_and_frames_go_on(make_secure):
    sender = Sender(make_secure("framed"))
    for number in range(3):
        key_update(sender.tls, asks=True)
        sender.passes(sender.record(frame(b"frame")))
        sender.upstream.sendall(frame(b"answer"))
        assert sender.read(10) == frame(b"answer"), number
    assert sender.end()["frames"] == {"request": 6, "response": 6}


def test_a_key_update_within_a_frame_takes_nothing_from_it(make_secure):
    sender = Sender(make_secure("framed"))
    sender.sock.sendall(sender.record(frame(b"frame")[:6]))
    sender.world.poll()
    assert (served(sender.world, sender.pair.client), sender.pair.client.channel.staged) == (True, 0)
    key_update(sender.tls, asks=True)
    sender.passes(sender.record(frame(b"frame")[6:]))
    sender.passes(sender.record(frame(b"frame")))
    assert sender.end()["frames"]["request"] == 5


def test_a_key_update_of_the_upstream_takes_nothing_from_a_frame_that_has_begun_on_the_lane_of_the_client(make_secure):
    sender = Sender(make_secure("framed"))
    sender.sock.sendall(sender.record(frame(b"frame")[:6]))
    sender.world.poll()
    assert (served(sender.world, sender.pair.client), sender.pair.client.channel.staged) == (True, 0)
    key_update(sender.upstream, asks=True)
    sender.upstream.sendall(frame(b"answer"))
    assert sender.read(10) == frame(b"answer")
    sender.passes(sender.record(frame(b"frame")[6:]))
    assert sender.end()["frames"] == {"request": 4, "response": 4}


def test_a_key_update_behind_frames_that_the_other_side_takes_in_part_takes_nothing_from_what_follows_it(make_secure):
    """One read has the frames, the key update and the beginning of a frame."""
    world = make_secure("framed")
    world.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    sender = Sender(world)
    channel, upstream = sender.pair.client.channel, sender.upstream
    small = frame(bytes(196)) * 80
    for _ in range(3):  # the first time for the portions of the lane, which reads 64 KiB at once from then on
        sender.sock.sendall(sender.record(small) + sender.record(small))
        assert world.read(upstream, 2 * len(small)) == small * 2
    assert served(world, sender.pair.client)
    set_send_buffer(sender.pair.upstream.channel, 4096)
    frames = b"".join(frame(number.to_bytes(4, "big") * 249) for number in range(48))
    records = b"".join(sender.record(frames[begin : begin + 16_000]) for begin in range(0, len(frames), 16_000))
    key_update(sender.tls, asks=True)
    sender.sock.sendall(records + sender.record(frame(b"frame")[:6]))
    world.until(lambda: channel.mute_causes == mute.PEER)
    assert (channel.frames_received, channel.staged) == (3 + 3 * 2 * 80 + 48, 6)
    assert world.read(upstream, len(frames)) == frames
    sender.passes(sender.record(frame(b"frame")[6:]))
    upstream.sendall(frame(b"answer"))
    assert sender.read(10) == frame(b"answer")
    assert sender.end()["frames"] == {"request": 4 + 3 * 2 * 80 + 48, "response": 4}
