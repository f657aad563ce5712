"""Both peers of one connection with a given combination of features: a client that drives it and an upstream that answers; each checks what comes."""

import contextlib
import hashlib
import random
import select
import socket
import ssl
import struct
import time
from typing import Any, Final

from framegate.control.accept.broker_list import Broker
from framegate.control.v1 import channel_service_pb2 as channels_pb2
from framegate.control.v1 import limit_service_pb2 as limits_pb2
from framegate.control.v1 import tap_service_pb2 as taps_pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.control.v1.tap_service_pb2_grpc import TapServiceStub
from framegate.proxy.auth.client import FIRST_CORRELATION_ID
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.kafka.endpoint_eraser import FIRST_UNKNOWN_TAG
from framegate.proxy.kafka.values import varint
from framegate.proxy.network.proxy_protocol import header_bytes
from tests.fakes import sasl_frames
from tests.fakes.brokers import metadata_answer
from tests.fakes.feature_model import Combination
from tests.fakes.framegate import Framegate, Row
from tests.fakes.upstream import ScriptedUpstream, peer_name, read_exactly, reset

LIMIT: Final = 3 << 20
USER, PASSWORD = "alice", "canary-52d1"
UPSTREAM_USER, UPSTREAM_PASSWORD = "proxy", "canary-90ab"
HEADER: Final = {"size": 8, "offset": 2, "width": 4, "byte_order": "little", "counts": "frame", "fill": "c0de0001"}
CUT_FROM: Final = 256 * 1024
FETCH, METADATA, HEARTBEAT, HANDSHAKE, VERSIONS, TOKEN = 1, 3, 12, 17, 18, 36
SIZES: Final = {"small": (16, 100, 5000), "mixed": (16, 5000, 20_000, 300_000), "large": (100, 300_000, 1_500_000)}
NOISE: Final = random.Random(7).randbytes(4 << 20)
CAUSES: Final = {
    "client_half_closes": {"peer_closed"},
    "client_closes": {"peer_closed", "peer_reset"},  # a TLS client that closes at once may answer our close_notify with a reset
    "client_resets": {"peer_reset"},
    "upstream_closes": {"peer_closed", "upstream_closed"},  # by whether it owes an answer then
    "frame_too_large": {"frame_too_large"},
    "negative_size": {"negative_size"},
    "within_a_frame": {"peer_closed"},
    "sasl_frame": {"auth_failed"},
    "large_sasl_frame": {"auth_failed", "frame_too_large"},
    "admin": {"admin"},
    "max_age": {"max_connection_age"},
    "drain": {"drained"},
}
HANDLERS: Final = """
from framegate.proxy.handler import PASS, Replace


def passes(frame, context):
    return PASS


def changes(frame, context):
    return Replace(bytes(frame) + (b"!" if context.direction == "request" else b"?"))


def answers(frame, context):
    return bytes(frame)


def answers_kafka(frame, context):
    return bytes(frame[4:])
"""


def encode(framing: str, body: bytes) -> bytes:
    size = len(body)
    if framing == "varint":
        header = b""
        while size > 0x7F:
            header += bytes((size & 0x7F | 0x80,))
            size >>= 7
        return header + bytes((size,)) + body
    if framing == "header":
        return b"\xc0\xde" + struct.pack("<I", size + 8) + b"\0\1" + body
    return struct.pack(">i", size + (4 if framing == "int32_inclusive" else 0)) + body


def header_of(framing: str, size: int) -> bytes:
    """The header alone of a frame whose body has that size."""
    return encode(framing, bytes(size))[:-size]


def take(framing: str, data: bytearray) -> bytes | None:
    """The first frame's body, taken from the data; None: it is not whole."""
    if framing == "varint":
        end = next((at for at, byte in enumerate(data[:5]) if byte < 0x80), -1)
        if end < 0:
            return None
        begin, size = end + 1, sum((byte & 0x7F) << 7 * at for at, byte in enumerate(data[: end + 1]))
    else:
        begin = 8 if framing == "header" else 4
        if len(data) < begin:
            return None
        size = struct.unpack_from("<I", data, 2)[0] - 8 if framing == "header" else struct.unpack_from(">i", data)[0]
        size -= 4 if framing == "int32_inclusive" else 0
    if len(data) < begin + size:
        return None
    body = bytes(data[begin : begin + size])
    del data[: begin + size]
    return body


def broker_answers(body: bytes, host: str, port: int) -> tuple[bytes, bytes]:
    """The answer of a broker at this address to a request for Metadata 8 or Fetch 16, with the request's payload; and the one of Fetch without it."""
    correlation, payload = body[4:8], body[11:]
    if body[1] == METADATA:
        named = metadata_answer([Broker(0, host, port)])[:-8]  # without topics and rights
        cut = len(payload) // 4 * 4  # the rest is the topic's name
        topic = b"\0\0" + sasl_frames.string("t" + payload[cut:].hex()) + b"\0"
        partition = struct.pack(">ihiiii", 1, 0, 0, 0, 0, cut // 4) + payload[:cut] + bytes(8)
        return correlation + named + struct.pack(">i", 1) + topic + partition + bytes(8), b""
    partition = struct.pack(">ihqqq", 0, 0, 0, 0, 0) + b"\1" + struct.pack(">i", -1) + varint(len(payload) + 1) + payload + b"\0"
    head = correlation + b"\0" + bytes(10) + b"\2" + bytes(16) + b"\2" + partition + b"\0\1"
    endpoints = b"\2" + bytes(4) + sasl_frames.compact(host.encode()) + struct.pack(">i", port) + b"\0\0"
    size = bytes((len(endpoints),))
    return head + b"\0" + size + endpoints, head + bytes((FIRST_UNKNOWN_TAG,)) + size + bytes(len(endpoints))


class Upstream(ScriptedUpstream):
    """Answers each frame; knows Kafka's login, and is the one broker of a cluster."""

    def __init__(self, combination: Combination, tls: ssl.SSLContext | None) -> None:
        self._combination = combination
        self._tls = tls
        self.requests: list[bytes] = []  # bodies of the frames that came, in order, those of our own login and of looks at versions left out
        self.rest = bytearray()  # bytes behind the last whole frame
        self.leaked: list[bytes] = []  # bodies of SASL frames that are not the proxy's own
        self.headers: list[bytes] = []  # of the PROXY protocol, of each connection
        self.sockets: list[socket.socket] = []
        super().__init__(self._talk)

    def end(self) -> None:
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _talk(self, plain: socket.socket) -> None:
        if self._combination.upstream_proxy != "no":
            self.headers.append(self._header(plain))
        sock = plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)
        data = bytearray()
        framing = self._combination.upstream_framing
        served = False
        with sock:
            while chunk := sock.recv(1 << 18):
                data += chunk
                while (body := take(framing, data)) is not None:
                    if self._combination.protocol == "kafka" and (answer := self._login(body)):
                        sock.sendall(encode(framing, answer))
                        continue
                    if not served:
                        served = True
                        self.sockets.append(sock)
                    self.requests.append(body)
                    sock.sendall(encode(framing, self._answer(body)))
                if served:
                    self.rest = bytearray(data)

    def _answer(self, body: bytes) -> bytes:
        if self._combination.brokers != "no":
            return broker_answers(body, "127.0.0.1", self.port)[0]
        return body[4:] if self._combination.protocol == "kafka" else body

    def _header(self, plain: socket.socket) -> bytes:
        if self._combination.upstream_proxy == "v2":
            head = read_exactly(plain, 16)
            return head + read_exactly(plain, int.from_bytes(head[14:], "big"))
        line = b""
        while not line.endswith(b"\r\n"):
            line += read_exactly(plain, 1)
        return line

    def _login(self, body: bytes) -> bytes:
        """The answer to what is not traffic; empty: it is."""
        key, version, correlation = struct.unpack_from(">hhi", body)
        if key == VERSIONS:
            known = (ApiRange(METADATA, 0, 12), ApiRange(HANDSHAKE, 0, 1), ApiRange(VERSIONS, 0, 3), ApiRange(TOKEN, 0, 1))
            return sasl_frames.versions_answer(0, *known, error=35 if version > 2 else 0, correlation=correlation)
        if key == METADATA and body[10:19] == b"framegate":  # control's own look
            return body[4:8] + metadata_answer([Broker(0, "127.0.0.1", self.port)], version)
        if key not in (HANDSHAKE, TOKEN):
            return b""
        if PASSWORD.encode() in body or correlation < FIRST_CORRELATION_ID or self._combination.upstream_sasl == "no":
            self.leaked.append(body[:200])
        if key == HANDSHAKE:
            return sasl_frames.handshake_answer("PLAIN", correlation=correlation)
        return sasl_frames.token_answer(version=version, correlation=correlation)


class Client:
    """One connection of a combination, from its login to its end; ``run`` raises AssertionError for what should not be.

    Args:
        number: of the listener ``c{number}``, and the last two numbers of the client's address.
        tls: of the client; used when the combination says so.
        port: of its listener, and the next one of its broker; for listeners with brokers. Every other client knows the broker's from the beginning.
    """

    def __init__(self, number: int, combination: Combination, upstream: Upstream, tls: ssl.SSLContext, port: int) -> None:
        self.name = f"c{number}"
        self.address = f"127.1.{number // 200}.{1 + number % 200}"
        self.combination = combination
        self.upstream = upstream
        self.sent: list[bytes] = []  # bodies
        self.answered = 0
        self.row: Row = {}
        self.port = port
        self._told = ("127.0.0.1", port + 1) if combination.brokers == "ports" else ("b0.localhost", 443)
        self._of_broker = number % 2 == 0
        self._tls = tls if combination.client_tls != "no" else None
        named = "CN=framegate demo client" if combination.client_tls == "mutual" else "ANONYMOUS"
        self.principal = USER if combination.sasl != "no" else named
        self._rng = random.Random(number)
        self._data = bytearray()
        self._correlation = 0
        self._login_s = 0.0
        self.abandoned = False
        self._sock: Any = None
        self._raw: Any = None
        self.peer = ""
        self._reached = ""

    # --- bytes ---------------------------------------------------------------------------------------------------------------------

    def _body(self) -> bytes:
        size = self._rng.choice(SIZES[self.combination.sizes])
        number = len(self.sent)
        payload = struct.pack(">I", number) + NOISE[number : number + size - 4]
        if self.combination.protocol == "framed":
            return payload
        self._correlation += 1
        key, version = (METADATA, 8) if number % 3 else (FETCH, 16)
        return struct.pack(">hhih", key, version, self._correlation, 1) + b"c" + payload

    def _refused(self) -> bytes:
        """A request that the rules refuse."""
        self._correlation += 1
        return struct.pack(">hhih", HEARTBEAT, 0, self._correlation, 1) + b"c" + sasl_frames.string("g") + bytes(4) + sasl_frames.string("m")

    def _is_refused(self, body: bytes) -> bool:
        return self.combination.rules != "no" and body[1] == HEARTBEAT

    def _expected(self, body: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """What the upstream must get for a request, and what the client may."""
        changes = self.combination.handler == "changes"
        request = body + b"!" * changes
        if self._is_refused(body):
            return request, (body[4:8] + struct.pack(">h", 30),)
        if self.combination.brokers != "no":
            return request, (broker_answers(body, *self._told)[0], broker_answers(body, "127.0.0.1", self.upstream.port)[1])
        return request, ((request[4:] if self.combination.protocol == "kafka" else request) + b"?" * changes,)

    def _receive(self, timeout: float) -> bool:
        """Read once what there is; False: nothing came in that time. EOFError at the end of the stream."""
        if not (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()) and not select.select([self._sock], [], [], timeout)[0]:
            return False
        try:
            chunk = self._sock.recv(1 << 18)
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        if not chunk:
            raise EOFError
        self._data += chunk
        while (answer := take(self.combination.client_framing, self._data)) is not None:
            wanted = self._expected(self.sent[self.answered])[1]
            told = f"{len(answer)} bytes, {answer[:30]!r}, not {len(wanted[0])}, {wanted[0][:30]!r}"
            assert answer in wanted, f"answer {self.answered} differs: {told}"
            self.answered += 1
        return True

    def _send(self, data: bytes, *, reads: bool = True) -> None:
        """Send all, reading meanwhile; where it does not read, it begins to as soon as nothing can be sent for a while."""
        view = memoryview(data)
        deadline = time.monotonic() + 30
        while view:
            assert time.monotonic() < deadline, "nothing can be sent"
            try:
                view = view[self._sock.send(view[: 1 << 18]) :]
                continue
            except (ssl.SSLWantWriteError, BlockingIOError):
                _, writable, _ = select.select([], [self._sock], [], 0 if reads else 0.1)
                reads = reads or not writable
            except ssl.SSLWantReadError:
                reads = True
            if reads:
                self._receive(0.01)

    def _ask(self, body: bytes, behind: bytes = b"", *, reads: bool = True) -> None:
        """Send a request, and other bytes behind it."""
        self.sent.append(body)
        self._send(encode(self.combination.client_framing, body) + behind, reads=reads)

    def _await(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while self.answered < count:
            assert time.monotonic() < deadline, f"{self.answered} of {count} answers came"
            self._receive(1)

    def exchange(self, count: int) -> None:
        """Send so many requests; each is answered when this returns."""
        window = int(self.combination.window)
        late = self.combination.reader == "late"
        for number in range(count):
            if not late:
                self._await(len(self.sent) + 1 - window)
            self._ask(self._refused() if self.combination.rules != "no" and number % 3 == 1 else self._body(), reads=not late)
        self._await(len(self.sent))

    def recorded(self) -> list[bytes]:
        """What the tap has of its requests: other bytes of a header stand before the body."""
        return [(b"\xc0\xde\0\1" if self.combination.client_framing == "header" else b"") + body for body in self.sent]

    # --- its course ----------------------------------------------------------------------------------------------------------------

    def open(self, proxy: Framegate) -> None:
        proxied = self.combination.client_proxy
        source = None if proxied != "no" else (self.address, 0)
        ports, hosts = self.combination.brokers == "ports", self.combination.brokers == "hosts"
        address = self._told if ports and self._of_broker else proxy.address(self.name)
        self._raw = self._sock = socket.create_connection(address, timeout=20, source_address=source)
        self.peer = peer_name(self._raw)
        self._reached = "{}:{}".format(*self._raw.getpeername())
        if proxied != "no":
            self.peer, self._reached = f"{self.address}:{self._raw.getsockname()[1]}", "192.0.2.1:9092"
            self._sock.sendall(header_bytes(proxied, self.peer, self._reached))
        if self._tls is not None:
            self._sock = self._tls.wrap_socket(self._sock, server_hostname="b0.localhost" if hosts and self._of_broker else "localhost")
        if self.combination.sasl != "no":
            self._login()
        self._sock.setblocking(False)

    def _login(self) -> None:
        self._sock.settimeout(20)
        for body in (sasl_frames.handshake("PLAIN", 1), sasl_frames.token(sasl_frames.plain_token(PASSWORD, USER), 2, 1)):
            self._sock.sendall(encode("int32", body))
            while (answer := take("int32", self._data)) is None:
                chunk = self._sock.recv(65536)
                assert chunk, "no login"
                self._data += chunk
            assert answer[4:6] == b"\0\0", answer
        self._login_s = time.monotonic()
        self._sock.setblocking(False)

    def run(self, proxy: Framegate) -> None:
        """All but the end of a connection that a drain ends."""
        count = 3 if self.combination.sizes == "large" else 12
        self.open(proxy)
        self.exchange(count)
        getattr(self, f"_action_{self.combination.action}")(proxy)
        self.exchange(count)
        if self.combination.ending != "drain":
            getattr(self, f"_{self.combination.ending}")(proxy)
            self.close(proxy)

    def abandon(self) -> None:
        self.abandoned = True
        if self._raw is not None:
            self._sock.close()
            self._raw.close()

    def logins(self, direction: str) -> int:
        """Frames of another login, which are counted and not in the tap, of a direction. A large one is refused by its head, and never whole."""
        refused = self.combination.ending == "sasl_frame"
        return (2 * (self.combination.action == "login") + refused) * (direction == "request")

    def drain(self, proxy: Framegate) -> None:
        self._max_age(proxy)
        self.close(proxy)

    def _max_age(self, proxy: Framegate) -> None:
        """Ask, one request after the other, until the connection is ended; each request that was taken is answered. A drain, also that of a
        connection that is too old, ends one that is quiet, which a request may cross.
        """
        deadline = time.monotonic() + 20
        with contextlib.suppress(EOFError, ConnectionError):
            while time.monotonic() < deadline:
                self._ask(self._body())
                self._await(len(self.sent))
                self._receive(0.02)
            raise AssertionError("a drain did not end it")

    def close(self, proxy: Framegate) -> None:
        """Close our side; judge the row and what came to whom."""
        self._sock.close()
        self._raw.close()
        self.row = proxy.closed_row(self.peer, 20)
        self.judge()

    def judge(self) -> None:
        ending, got = self.combination.ending, self.upstream.requests
        if ending in ("drain", "max_age") and self.row["frames"]["request"] == len(self.sent) - 1:
            self.sent.pop()  # it was not taken
        wanted = [self._expected(body)[0] for body in self.sent if not self._is_refused(body)]
        assert self.row.get("broker", -1) == (0 if self.combination.brokers != "no" and self._of_broker else -1), self.row
        assert self.row["cause"] in CAUSES[ending], self.row
        assert self.row["principal"] == self.principal, self.row
        if self.combination.upstream_proxy != "no":
            assert self.upstream.headers.count(header_bytes(self.combination.upstream_proxy, self.peer, self._reached)) == 1, self.upstream.headers
        if self.combination.handler != "answers":
            assert [hashlib.sha256(body).digest() for body in got] == [hashlib.sha256(body).digest() for body in wanted], (len(got), len(wanted))
            assert not self.upstream.leaked, self.upstream.leaked
            assert self.combination.requests == "cut_through" or not self.upstream.rest, "an upstream saw a part of a frame"
        lost_answers = ending in ("frame_too_large", "negative_size")
        assert self.answered == len(self.sent) or (lost_answers and self.answered == len(self.sent) - 1), (self.answered, len(self.sent))
        assert self.row["frames"]["request"] == len(self.sent) + self.logins("request"), (self.row, len(self.sent))
        assert self.row["frames"]["response"] in (len(self.sent), self.answered), (self.row, self.answered)

    # --- actions -------------------------------------------------------------------------------------------------------------------

    def _selector(self, proxy: Framegate) -> channels_pb2.ChannelSelector:
        return channels_pb2.ChannelSelector(channels=channels_pb2.ChannelIds(ids=[proxy.channels()[self.peer].id]))

    def _action_no(self, proxy: Framegate) -> None:
        """Nothing."""

    def _action_mute(self, proxy: Framegate) -> None:
        """Nothing of what is sent passes until it is unmuted."""
        selector = self._selector(proxy)
        with proxy.api() as channel:
            stub = ChannelServiceStub(channel)
            stub.MuteChannels(channels_pb2.MuteChannelsRequest(selector=selector, reason="test"), timeout=20)
            before = len(self.upstream.requests)
            self._ask(self._body()[:1000])
            assert not self._receive(0.05), "an answer of a muted connection"
            assert len(self.upstream.requests) == before
            stub.UnmuteChannels(channels_pb2.UnmuteChannelsRequest(selector=selector, reason="test"), timeout=20)

    def _action_throttle(self, proxy: Framegate) -> None:
        """It is throttled from now on, as all later connections of its listener are."""
        rates = dict.fromkeys(("request_bytes_per_second", "response_bytes_per_second"), 8 << 20)
        asked = channels_pb2.ThrottleChannelsRequest(
            selector=channels_pb2.ChannelSelector(filter=f"listener={self.name}"), reason="test", standing=True, **rates
        )
        with proxy.api() as channel:
            answer = ChannelServiceStub(channel).ThrottleChannels(asked, timeout=20)
        assert (answer.action.standing, answer.affected_count) == (True, 1)

    def _action_limit(self, proxy: Framegate) -> None:
        """The limit is as large as the largest frame so far, and as before again."""
        for size in (max(map(len, self.sent)), LIMIT):
            wanted = limits_pb2.UpdateLimitRequest(limit=limits_pb2.Limit(listener=self.name, max_receive_size_bytes=size))
            with proxy.api() as channel:
                LimitServiceStub(channel).UpdateLimit(wanted, timeout=20)
            self._ask(max(self.sent, key=len) if self.combination.protocol == "framed" else self._body()[:16])
            self._await(len(self.sent))

    def _action_login(self, proxy: Framegate) -> None:
        """It logs in again, as Kafka's clients do when a session is about to end; in its first second that is refused, as by a broker."""
        time.sleep(max(0.0, self._login_s + 1.1 - time.monotonic()))
        self._login()

    def _action_rule(self, proxy: Framegate) -> None:
        with proxy.api() as channel:
            stub = TapServiceStub(channel)
            rule = stub.GetTapRule(taps_pb2.GetTapRuleRequest(name=self.name), timeout=20).tap_rule
            stub.DeleteTapRule(taps_pb2.DeleteTapRuleRequest(name=self.name), timeout=20)
            stub.CreateTapRule(taps_pb2.CreateTapRuleRequest(tap_rule=rule), timeout=20)

    # --- endings -------------------------------------------------------------------------------------------------------------------

    def _until_end(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                self._receive(1)
            raise AssertionError("it did not end")

    def _client_half_closes(self, proxy: Framegate) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.settimeout(20)
            self._sock = self._sock.unwrap()
        self._sock.setblocking(False)
        self._sock.shutdown(socket.SHUT_WR)
        self._until_end()

    def _client_closes(self, proxy: Framegate) -> None:
        self._sock.close()

    def _client_resets(self, proxy: Framegate) -> None:
        reset(self._sock)

    def _upstream_closes(self, proxy: Framegate) -> None:
        self.upstream.end()
        self._until_end()

    def _frame_too_large(self, proxy: Framegate) -> None:
        self._ask(self._body(), header_of(self.combination.client_framing, LIMIT + 1))
        self._until_end()

    def _negative_size(self, proxy: Framegate) -> None:
        self._ask(self._body(), b"\xff\xff\xff\xff")
        self._until_end()

    def _within_a_frame(self, proxy: Framegate) -> None:
        whole = encode(self.combination.client_framing, self._body() + NOISE[:300_000])
        self._send(whole[: len(whole) // 2])
        self._client_half_closes(proxy)

    def _sasl_frame(self, proxy: Framegate) -> None:
        self._send(encode("int32", sasl_frames.token(sasl_frames.plain_token(PASSWORD, USER), 9, 1)))
        self._until_end()

    def _large_sasl_frame(self, proxy: Framegate) -> None:
        with contextlib.suppress(OSError):  # it may be ended before all is sent
            self._send(encode("int32", sasl_frames.token(sasl_frames.plain_token(PASSWORD, USER) + bytes(CUT_FROM), 9, 1)))
        self._until_end()

    def _admin(self, proxy: Framegate) -> None:
        selector = self._selector(proxy)
        with proxy.api() as channel:
            ChannelServiceStub(channel).CloseChannels(channels_pb2.CloseChannelsRequest(selector=selector, reason="test"), timeout=20)
        self._until_end()
