"""Pairs over real loopback sockets and a real selector, with a clock of the test's own."""

import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from framegate.proxy.clock import Clock
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.network.authenticator import AuthenticatorFactory
from framegate.proxy.network.connection_id import ConnectionIds
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.options import ChannelOptions, TlsSettings
from framegate.proxy.network.proxy_protocol import ProxyProtocol
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.cluster import RouteBrokers
from framegate.proxy.relay.counters import Counters, EndpointCounters
from framegate.proxy.relay.drain import Drain
from framegate.proxy.relay.ending import ACTIVE, CLOSED_BY
from framegate.proxy.relay.handled_connection import HandlerMetrics
from framegate.proxy.relay.handler_leg import HandlerLegs
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce
from framegate.proxy.relay.login import Logins
from framegate.proxy.relay.opening import ACCEPTED
from framegate.proxy.relay.pair import Pair, PairWatcher
from framegate.proxy.relay.relay import Relay
from framegate.proxy.relay.request_channel import RequestChannel
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.relay.revocation import Revocations
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.upstream import CONNECTING, USED, Endpoint, Upstream
from framegate.proxy.server.pair_rows import closed_line, endpoint_down_row, endpoint_up_row, opened_line
from framegate.proxy.server.rows import ClosedRow, EndpointDownRow, EndpointUpRow, OpenedRow
from tests.fakes.pools import found_in, pool_of
from tests.fakes.rows import decode_line
from tests.fakes.upstream import frame
from tests.fakes.upstream import reset as reset

SECOND = 1_000_000_000
FIRST_PIECE = 128 * 1024  # of answers that may have addresses of brokers
SMALL = 256 * 1024  # the largest frame, header counted, that is never cut through


PLACE = ("endpoint", "u", "192.0.2.9", "9", "")


class HandClock(Clock):
    """Stands still until a test moves ``ns``. After ``readings_left`` readings one raises, as a bug of ours would; below 0: none does."""

    def __init__(self) -> None:
        self.ns = 1000 * SECOND
        self.readings_left = -1

    def now_ns(self) -> int:
        if self.readings_left == 0:
            self.readings_left = -1
            raise RuntimeError("a bug, in the middle of things")
        self.readings_left -= self.readings_left > 0
        return self.ns


class Told(PairWatcher):
    def __init__(self) -> None:
        self.opened: list[OpenedRow] = []
        self.rows: list[ClosedRow] = []
        self.muted: list[int] = []
        self.cut_off: list[int] = []
        self.reported: list[tuple[int, bytes]] = []
        self.endpoints: list[EndpointDownRow | EndpointUpRow] = []
        self.spans: list[RequestSpan] = []

    def pair_opened(self, pair: Pair) -> None:
        self.opened.append(decode_line(opened_line(pair, 0), "opened"))

    def pair_closed(self, pair: Pair) -> None:
        self.rows.append(decode_line(closed_line(pair, 0)))

    def pair_muted(self, pair: Pair) -> None:
        self.muted.append(int(pair.id))

    def frame_reported(self, pair: Pair, size: int, head: bytes) -> None:
        self.reported.append((size, head))

    def request_ended(self, pair: Pair, span: RequestSpan) -> None:
        self.spans.append(span)

    def drained(self, cut_off: int) -> None:
        self.cut_off.append(cut_off)

    def endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        self.endpoints.append(endpoint_down_row(upstream, endpoint) if endpoint.down else endpoint_up_row(upstream, endpoint))


def endpoint_of(address: Any, counters: EndpointCounters | None = None) -> Endpoint:
    """The endpoint of an address as ``connect`` takes it, of whatever family."""
    if isinstance(address, str):
        return Endpoint(socket.AF_UNIX, address, counters=counters)
    return Endpoint(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, tuple(address[:2]), counters=counters)


def _is_shaken(sock: ssl.SSLSocket) -> bool:
    with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
        sock.do_handshake()
        return True
    return False


class World:
    """One listener, one upstream, one selector.

    Args:
        protocol: of the listener.
        endpoints: addresses of the upstream, a text that of a Unix socket; none: a listening socket of this world, ``server``.
        client_tls, upstream_tls: of the two sides; none is plaintext.
        cut_requests, cut_answers: large frames of that direction pass in pieces.
        requests: the way to handler processes, which get the frames.
        serves: they answer: there is no upstream.
        authenticators: of clients; None: whoever comes is nobody.
        refusal_ms: from a refusal to its answer.
        logins: who we are to the upstream.
        upstream: how its endpoints are chosen, and the header that connections to it begin with.
        proxy_protocol: of clients.
        brokers: the upstream is a cluster: the addresses that clients are told are in it. ``broker_endpoints``: addresses of brokers, by id.
        kafka_rules: which APIs and names clients may use; None: all.
        is_local: only clients in the pod reach the listener.
        others: options of both sides' channels.
    """

    def __init__(
        self,
        protocol: str = "framed",
        *,
        limit: int = 1 << 20,
        answer_limit: int = 1 << 20,
        pool: int = 1 << 24,
        endpoints: list[Any] | None = None,
        half_close_s: int = 30,
        waits_before_data: bool = False,
        connect_s: int = 5,
        idle_s: int = 0,
        stall_s: int = 0,
        rules: Any = None,
        writer: Any = None,
        quiet_s: int = 1,
        client_tls: TlsSettings | None = None,
        upstream_tls: TlsSettings | None = None,
        cut_requests: bool = False,
        cut_answers: bool = False,
        framing: Framing = INT32,
        upstream_framing: Framing | None = None,
        requests: RequestChannel | None = None,
        serves: bool = False,
        authenticators: AuthenticatorFactory | None = None,
        refusal_ms: int = 0,
        logins: Logins | None = None,
        upstream: UpstreamConfig | None = None,
        proxy_protocol: ProxyProtocol | None = None,
        brokers: RouteBrokers | None = None,
        kafka_rules: KafkaRulesInForce | None = None,
        broker_endpoints: Mapping[int, Any] | None = None,
        is_local: bool = False,
    ) -> None:
        self.clock = HandClock()
        self.told = Told()
        self.pool = pool_of(pool, self.clock.now_ns)
        # bytes of the largest frame that passes whole as a request, and as an answer; 0 when such frames pass in pieces
        self.largest = (0 if cut_requests else limit + 4, 0 if cut_answers else answer_limit + 4)
        self.pool.set_largest(*self.largest)
        self.counters = Counters(["l"], ["u"], [PLACE])
        self.endpoint_counters = self.counters.endpoints[PLACE]  # of all endpoints
        counters = self.counters.listeners["l"]
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(2)
        self.limit = ReceiveLimit(limit)
        common: dict[str, Any] = {"stall_ns": stall_s * SECOND, "min_rate": 1024}
        onward = upstream_framing or framing
        translates = onward is not framing
        cut: dict[str, Any] = {"cut_from": SMALL}
        client_options = ChannelOptions(
            side="downstream",
            limit=self.limit,
            stats=counters.downstream,
            idle_ns=idle_s * SECOND,
            tls=client_tls,
            framing=framing,
            onward=onward if translates else None,
            authenticators=authenticators,
            failed_authentication_delay_ns=refusal_ms * 1_000_000,
            proxy_protocol=proxy_protocol,
            sasl_limit=NEVER_CUT if authenticators is None else SMALL - 4,
            **common,
            **(cut if cut_requests else {}),
        )
        self.upstream_options = ChannelOptions(
            side="upstream",
            limit=ReceiveLimit(answer_limit),
            stats=counters.upstream,
            handshake_timeout_ns=connect_s * SECOND,
            tls=upstream_tls,
            framing=onward,
            onward=framing if translates else None,
            first_piece=0 if brokers is None and kafka_rules is None else FIRST_PIECE,
            keeps_first=brokers is not None or kafka_rules is not None,
            **common,
            **(cut if cut_answers else {}),
        )
        addresses = [self.server.getsockname()] if endpoints is None else endpoints
        others = [(node, endpoint_of(address)) for node, address in (broker_endpoints or {}).items()]
        at_brokers = [Endpoint(item.family, item.address, "", node, counters=self.endpoint_counters) for node, item in others]
        self.upstream = Upstream("u", [*(endpoint_of(each, self.endpoint_counters) for each in addresses), *at_brokers], upstream)
        self.upstream.places = self.counters.endpoints
        self.route = Route(
            listener="l",
            upstream=None if serves else self.upstream,
            protocol=protocol,
            options=client_options,
            upstream_options={"": self.upstream_options},
            half_close_ns=half_close_s * SECOND,
            waits_before_data=waits_before_data,
            counters=counters,
            handler=None if requests is None else HandlerMetrics(counters),
            authenticates=authenticators is not None,
            logins=logins,
            revoked=Revocations(10 * SECOND),
            send_proxy_protocol="" if upstream is None else upstream.send_proxy_protocol or "",
            brokers=brokers,
            rules=kafka_rules,
            is_local=is_local,
        )
        handled = None if requests is None else HandlerLegs(requests)
        self.relay = Relay(ConnectionIds(1, 1), self.counters, self.told, rules, writer, handled)
        self.selector = Selector(self.clock, self.pool)
        self.relay.pairs.attach(self.selector)
        if requests is not None:
            requests.attach(self.selector)
        self.drain = Drain(self.selector, self.clock, self.relay.pairs.open, self.told, quiet_s * SECOND)
        self.sockets: list[socket.socket] = [self.server]

    @property
    def rows(self) -> list[ClosedRow]:
        return self.told.rows

    @property
    def row(self) -> ClosedRow:
        assert len(self.rows) == 1, self.rows
        return self.rows[0]

    def client(self, peer: str = "192.0.2.1:1", broker: int = -1) -> tuple[socket.socket, Pair]:
        """A client, and the pair that begins with it; the upstream is not connected yet. ``broker``: that it reaches."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        client.settimeout(2)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a second piece would wait 40 ms for the first one's acknowledgement
        self.sockets.append(client)
        pair = self.relay.take_over(accepted, self.route, peer, self.clock.ns, broker)
        return client, pair

    def pair(self, peer: str = "192.0.2.1:1") -> tuple[socket.socket, socket.socket, Pair]:
        """A client, its upstream's socket, and the open pair."""
        client, pair = self.client(peer)
        self.until(lambda: pair.state.value == "open")
        upstream, _ = self.server.accept()
        upstream.settimeout(2)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sockets.append(upstream)
        return client, upstream, pair

    def poll(self, times: int = 3) -> None:
        """What is sent over the loopback is there at once; the kernel, which is late on a busy machine, gets a millisecond at the end."""
        for left in reversed(range(times)):
            self.selector.poll(0 if left else 1)

    def until(self, done: Callable[[], object], polls: int = 400) -> None:
        for _ in range(polls):
            if done():
                return
            self.selector.poll(5)
        raise AssertionError("it did not come to that")

    def shake(self, client: socket.socket, context: ssl.SSLContext, name: str | None = "localhost") -> ssl.SSLSocket:
        """A client's TLS handshake, over the socket that it takes the place of."""
        client.setblocking(False)
        made = context.wrap_socket(client, server_hostname=name, do_handshake_on_connect=False)
        self.sockets.append(made)
        self.until(lambda: _is_shaken(made))
        return made

    def pass_time(self, seconds: float) -> None:
        self.clock.ns += int(seconds * SECOND)
        self.poll(2)

    def read(self, sock: socket.socket, size: int) -> bytes:
        """Exactly so many bytes, polling meanwhile."""
        data, ended = self._receive(sock, size)
        assert len(data) == size, f"{len(data)} of {size} bytes, and then {'the end' if ended else 'nothing'}"
        return data

    def ended(self, sock: socket.socket) -> bytes:
        """All until the end of the stream, polling meanwhile."""
        data, ended = self._receive(sock, 1 << 40)
        assert ended, "the stream did not end"
        return data

    def _receive(self, sock: socket.socket, size: int) -> tuple[bytes, bool]:
        """So many bytes, or fewer when the stream ends before, or nothing comes for long; and whether it ended."""
        data, ended = b"", False
        sock.setblocking(False)
        for _ in range(2000):
            try:
                piece = sock.recv(min(size - len(data), 1 << 20))
            except BlockingIOError:
                self.selector.poll(2)
                continue
            data += piece
            ended = not piece
            if ended or len(data) == size:
                break
        sock.settimeout(2)
        return data, ended

    def fill(self, sock: socket.socket) -> int:
        """Send frames until the socket takes no more; how many frames were begun (the last may be cut)."""
        sock.setblocking(False)
        data = frame(b"x" * 60_000)
        count = 0
        stuck = 0
        while stuck < 20:
            left = data
            while left and stuck < 20:
                try:
                    left = left[sock.send(left) :]
                    stuck = 0
                except BlockingIOError:
                    stuck += 1
                    self.selector.poll(2)
            count += 1
        sock.settimeout(2)
        return count

    def blind(self, client: socket.socket, pair: Pair, cause: int) -> None:
        """Mute a pair's client, and have epoll lose its descriptor: an error of our own that comes up when it is unmuted."""
        channel = pair.client.channel
        assert channel is not None, "the pair is open"
        channel.mute(cause)
        client.sendall(frame(b"not read"))
        self.poll()
        self.selector._epoll.unregister(int(channel.fd))

    def close(self) -> None:
        """Close everything; the pool must be whole and no pair left."""
        self.selector.close()
        for sock in self.sockets:
            sock.close()
        assert found_in(self.pool) == []
        assert self.pool.used == 0, "memory was not given back"
        assert not self.relay.pairs.open, "a pair is left"
        for counters in self.counters.listeners.values():
            assert (counters.downstream_counts.cells[ACTIVE], counters.upstream_counts.cells[ACTIVE], counters.pairing.open) == (0, 0, 0)
            closed = sum(int(counters.counts.cells[at]) for at in CLOSED_BY.values())
            assert closed == len(self.rows) == int(counters.counts.cells[ACCEPTED])
        upstream = self.endpoint_counters.counts.cells
        assert (upstream[CONNECTING], upstream[USED]) == (0, 0)
        assert not any(endpoint.probed for endpoint in self.upstream.endpoints), "a probe was not given back"
        assert {int(endpoint.connections) for endpoint in self.upstream.endpoints} <= {0}, "a connection was not counted down"
