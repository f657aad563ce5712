"""Many pairs over real sockets, all of their peers played by one test; what the page on memory promises is looked at after every poll."""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from framegate.proxy.network.memory_pool import with_overhead
from framegate.proxy.relay.pair import Pair
from tests.fakes.peer import Peer
from tests.fakes.tls import TlsWorld
from tests.fakes.world import SECOND, World

KIB = 1024
MIB = 1024 * KIB
READ = 512 * KIB  # by one read the pool may be passed, which may be booked on both sides
STEP_NS = 250_000
REST = 120  # polls
SEGMENT = 4096  # the loopback's own are 64 KiB: more than a small buffer, so that every one would wait for a delayed acknowledgement
RECORD = 17 * KIB  # of each TLS connection
HEADER = 4 + 64  # of each connection: a large frame's, with its overhead


class Couple:
    """A client and the upstream's end of its pair."""

    def __init__(self, client: Peer, upstream: Peer, pair: Pair) -> None:
        # client, upstream: the peers
        self.client = client
        self.upstream = upstream
        self.pair = pair  # what joins them
        self.id = int(pair.id)

    @property
    def peers(self) -> tuple[Peer, Peer]:
        return self.client, self.upstream

    @property
    def done(self) -> bool:
        """All that either was given has arrived."""
        return self.client.done and self.upstream.done

    @property
    def held(self) -> int:
        """Bytes booked for the two channels."""
        return sum(int(channel.leased) for channel in (self.pair.client.channel, self.pair.upstream.channel) if channel is not None)


class Crowd(World):
    """A world with many couples. Its clock goes a quarter of a millisecond with each poll, and more in ``pass_time``. ``tls``: certificates; both
    sides speak TLS. None: plaintext. ``others``: of ``World``.
    """

    def __init__(self, protocol: str = "framed", *, tls: TlsWorld | None = None, **others: Any) -> None:
        self.tls = tls
        self.contexts: tuple[Any, Any] = (None, None)
        if tls is not None:
            others.update(client_tls=tls.server_settings(), upstream_tls=tls.client_settings())
            self.contexts = (tls.client_settings().context, tls.server_settings().context)
        self.cuts = (bool(others.get("cut_requests")), bool(others.get("cut_answers")))
        super().__init__(protocol, **others)
        self.server.setblocking(False)
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        self.couples: list[Couple] = []  # those that joined, oldest first
        self.polls = 0  # how many there were
        self.highest = 0  # the most that the pool ever held after a poll
        self._size = int(self.pool.size)
        self._streams = 0

    def join(self, *, buffer: int = 0) -> Couple:
        """A new couple, whose pair is open. ``buffer``: bytes of the send buffers of our two sockets; 0: the kernel's choice, which is some MiB."""
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
            sock.connect(listener.getsockname())
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stack.pop_all()
        pair = self.relay.take_over(accepted, self.route, "192.0.2.1:1", self.clock.ns)
        client = self._peer(sock, server=False)
        far: list[Peer] = []

        def is_open() -> bool:
            for peer in (client, *far):
                peer.turn()
            if not far:
                try:
                    far.append(self._peer(self.server.accept()[0], server=True))
                except BlockingIOError:
                    return False
            return pair.state.value == "open" and not client.shaking and not far[0].shaking

        self.until(is_open)
        couple = Couple(client, far[0], pair)
        client.other, far[0].other = far[0], client
        client.cut, far[0].cut = self.cuts
        if buffer:
            for leg in (pair.client, pair.upstream):
                set_send_buffer(leg.channel, buffer)
        self.couples.append(couple)
        return couple

    def _peer(self, sock: socket.socket, *, server: bool) -> Peer:
        self._streams += 1
        peer = Peer(sock, self._streams, self.contexts[server], server=server)
        self.sockets.append(peer.sock)
        return peer

    # Moving.

    def turn(self, times: int = 1, step_ns: int = STEP_NS) -> None:
        """Every peer moves what it can, and the selector polls once; then what is promised is looked at. The clock goes a step each time."""
        for _ in range(times):
            self.clock.ns += step_ns
            for couple in self.couples:
                couple.client.turn()
                couple.upstream.turn()
            self.selector.poll(1)
            self.polls += 1
            self.check()

    def settle(self, done: Callable[[], object], turns: int = 2000, step_ns: int = STEP_NS) -> int:
        """Turn until ``done``; how many turns that took."""
        for count in range(turns):
            if done():
                return count
            self.turn(1, step_ns)
        raise AssertionError(f"it did not come to that in {turns} turns: {self.standing()}")

    def rest(self) -> None:
        """Turn until nothing has moved for a while, or ``REST`` turns have passed: some peers never stop."""
        last, still, end = -1, 0, self.polls + REST
        while still < 15 and self.polls < end:
            moved = sum(peer.sent + peer.seen for couple in self.couples for peer in couple.peers) + int(self.pool.used)
            still = still + 1 if moved == last else 0
            last = moved
            self.turn()

    def pass_time(self, seconds: float, step_ms: int = 25) -> None:
        """Move the clock in steps; everybody moves meanwhile."""
        end = self.clock.ns + int(seconds * SECOND)
        while self.clock.ns < end:
            self.turn(1, min(step_ms * 1_000_000, end - self.clock.ns))

    # What must hold.

    @property
    def bound(self) -> int:
        """What may be held at most."""
        each = HEADER if self.tls is None else HEADER + RECORD
        return self._size + sum(int(with_overhead(size)) for size in self.largest) + READ + each * 2 * len(self.relay.pairs.open)

    def resize(self, size: int) -> None:
        """Change the pool; until no more is held and promised than the new size, what is now counts as the size."""
        self.pool.resize(size)
        self._size = max(size, int(self.pool.used + self.pool.promised))

    def check(self) -> None:
        used = int(self.pool.used)
        self.highest = max(self.highest, used)
        if used + self.pool.promised <= self.pool.size:
            self._size = int(self.pool.size)
        assert 0 <= used <= self.bound, f"{used} bytes are held, {self.bound} may be (begun {self.pool.begun}, pending {self.pool.pending})"
        channels = [leg.channel for pair in self.relay.pairs.open.values() for leg in (pair.client, pair.upstream)]
        leased = sum(int(channel.leased) for channel in channels if channel is not None)
        assert leased == used, f"channels hold {leased} bytes, the pool says {used}"
        held = [
            (channel.read_half.receive.booked, channel.write_half.pending.booked, channel.write_half.booked_tls)
            for channel in channels
            if channel is not None
        ]
        kinds = [int(sum(one[kind] for one in held)) for kind in range(3)]
        assert kinds == [int(self.pool.begun), int(self.pool.pending), int(self.pool.tls)]
        assert self.selector.faults.total == 0, self.selector.faults.take()

    @property
    def is_short(self) -> bool:
        """So much is held that requests are read with care."""
        return bool(self.pool.used >= self.pool.line)

    def row_of(self, couple: Couple) -> dict[str, Any] | None:
        """The row of a couple whose pair is closed."""
        return next((row for row in self.rows if row["id"] == couple.id), None)

    def standing(self) -> str:
        """What is where, for the message of a failure."""
        lines = [f"pool {int(self.pool.used)} of {int(self.pool.size)}, closed {[(row['id'], row['cause'], row['detail']) for row in self.rows]}"]
        for couple in self.couples:
            if not couple.done and self.row_of(couple) is None:
                pair = couple.pair
                mutes = [int(leg.channel.mute_causes) if leg.channel is not None else -1 for leg in (pair.client, pair.upstream)]
                parts = [f"{peer.sent}/{len(peer.given)} sent, {peer.seen} seen {peer.ended}" for peer in couple.peers]
                lines.append(f"{couple.id}: client {parts[0]}; upstream {parts[1]}; held {couple.held}, mutes {mutes}")
        return "\n".join(lines[:20])


def set_send_buffer(channel: Any, size: int) -> None:
    """Bound what the kernel takes of what we send on a channel."""
    with socket.socket(fileno=os.dup(int(channel.fd))) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
