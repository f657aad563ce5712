"""A channel: one connection, with its transport, its reading and writing halves, its state and its mute causes.

Rules
- At most one receive in progress and one pending send. One read and one write per readiness event.
- An error closes this channel only, with one cause; the first cause wins. ``close`` may be called from anywhere: it releases booked memory and
  leaves the selector at once; the sink is notified at the end of the poll.
- While memory is short the channel reads only what it can pass on (``low_memory_reader``, ``MEMORY.md``).
- A mute does not touch the selector: the next event of a muted channel drops its read interest. A short mute costs nothing.
- EPOLLHUP and EPOLLERR cannot be masked: a muted channel that gets one leaves the selector (``hung``) until it is unmuted. A socket error closes it.
"""

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, TransportError, WrongProtocolError
from framegate.proxy.network import socket_buffers
from framegate.proxy.network.authentication import Authentication
from framegate.proxy.network.authenticator import Authenticator, AuthenticatorFactory
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.close_cause import cause_of, end_of_handshake, raise_error_of
from framegate.proxy.network.epoll import BROKEN, EPOLLIN, EPOLLOUT, EPOLLRDHUP, UNREGISTERED, FdHandler
from framegate.proxy.network.framing import OK
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.lanes import open_lane
from framegate.proxy.network.memory_pool import BEGUN, Account
from framegate.proxy.network.mute import MuteSet
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.proxy_protocol import HeaderReader, Preamble, own_address
from framegate.proxy.network.read_half import ReadHalf
from framegate.proxy.network.run import Run
from framegate.proxy.network.state import CLOSED, CONNECTING, HANDSHAKE, TRANSITIONS, ChannelEvent, ChannelState, transition
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, ENDED, WANT_WRITE, Identity, Transport
from framegate.proxy.network.write_half import WriteHalf

if TYPE_CHECKING:
    from framegate.proxy.network.fast_path import Lane
    from framegate.proxy.network.selector import Selector
    from framegate.proxy.network.watchdog import Watchdog


class Channel(FdHandler):
    """One connection."""

    __deletable__ = ("sink",)

    def __init__(
        self,
        loop: "Selector",
        sock: socket.socket,
        transport: Transport,
        channel_id: i64,
        options: ChannelOptions,
        sink: ChannelSink,
        peer: str,
        *,
        connecting: bool,
    ) -> None:
        now_ns = loop.now_ns
        self.fd: Final[i64] = sock.fileno()  # the number of its descriptor
        self.is_open: bool = False  # READY or later, and not closed
        self.gated: bool = False  # ``ChannelSink.may_read`` is called before each read
        self.shutting: bool = False  # ``shut_write`` was called
        self.last_active_ns: i64 = now_ns  # when a byte was last read or written, on the selector's clock
        self.id: Final[i64] = channel_id  # see ``connection_id``; both channels of a pair may carry the same
        self.sink: ChannelSink = sink  # receives the events of the channel; released after ``closed``
        self.options: Final = options  # shared by the channels of its side
        self.peer: str = peer  # the peer's address as text; of a client behind a proxy, which the PROXY protocol tells, the client's
        # what passes before the transport has the connection; None: nothing, or it has passed. May be set before the first poll.
        self.preamble: Preamble | None = None if options.proxy_protocol is None else HeaderReader(options.proxy_protocol, peer)
        self.destination: str = ""  # where a client behind a proxy connected to, as text; empty: to this socket
        self.state: ChannelState = CONNECTING if connecting else HANDSHAKE  # its state
        self.hung: bool = False  # the descriptor left the selector, because the peer closed while the channel was muted
        # principal, principal_type, identity: of the peer; set before ``ready``
        self.principal: str = ""
        self.principal_type: str = ""
        # expires_ns, renew_ns: when the authentication expires, and when framegate should renew it, on the selector's clock, or NEVER
        self.expires_ns: i64 = NEVER
        self.renew_ns: i64 = NEVER
        self.identity: Identity | None = None
        self.proof_began_ns: i64 = 0  # when the last authentication of the peer began
        # makes the authenticator towards an upstream; set before the first poll. None: no authentication.
        self.login: AuthenticatorFactory | None = None
        # close_cause, detail, error: why it was closed
        self.close_cause: Cause | None = None
        self.detail: str = ""
        self.error: BaseException | None = None
        # opened_ns, connected_ns, secured_ns, ready_ns, closed_ns: on the selector's clock; 0 if not reached. Secured: before the authentication.
        self.opened_ns: i64 = now_ns
        self.connected_ns: i64 = 0 if connecting else now_ns
        self.secured_ns: i64 = 0
        self.ready_ns: i64 = 0
        self.closed_ns: i64 = 0
        self._interest: i64 = UNREGISTERED
        self._watch: Watchdog | None = None
        self._buffered_queued: bool = False
        self._handshake_queued: bool = False
        self._authentication: Authentication | None = None
        account = options.account or loop.pool.common
        self._loop: Final = loop
        self._account: Final[Account] = account
        self._socket: Final = sock
        self.transport: Final = transport  # for the fast path and the halves
        self.lane: Lane | None = None  # its way through the fast path, once one was opened from or to it
        # whether it may have one: frames are passed on as they came
        self.suits_lane: Final[bool] = loop.fast_path is not None and options.framing is INT32 and (options.onward is None or options.onward is INT32)
        self.mutes: Final = MuteSet(options.stats)  # its mute causes
        # read_half, write_half: its two halves; a caller on the hot path calls ``write_half`` directly
        self.read_half: Final = ReadHalf(self, sink, loop, sock, transport, self.mutes, account, options)
        self.write_half: Final = WriteHalf(self, sink, loop, sock, transport, account, options.stats)
        self._receive: Final = self.read_half.receive
        self._send: Final = self.write_half.pending

    @property
    def own_address(self) -> str:
        """Where the client connected to, as text: the address of the proxy before us, if it has told, else of this socket."""
        return self.destination or own_address(self._socket)

    @property
    def frames_received(self) -> i64:
        return self.read_half.frames_received

    @property
    def bytes_received(self) -> i64:
        return self.read_half.bytes_received

    @property
    def lost_bytes(self) -> i64:
        return self.read_half.lost_bytes

    @property
    def unsent_bytes(self) -> i64:
        return self.write_half.unsent_bytes

    @property
    def can_send(self) -> bool:
        return self.write_half.can_send

    @property
    def pending_send(self) -> i64:
        return self.write_half.pending_bytes

    @property
    def staged(self) -> i64:
        """Bytes kept of the frame in progress."""
        return self._receive.staged

    @property
    def leased(self) -> i64:
        """Bytes booked at the memory pool for this channel."""
        return self.read_booked + self._send.booked + self.transport.booked

    @property
    def read_booked(self) -> i64:
        """Those of them that are booked for the frame in progress, or for a frame of the authentication."""
        authentication = self._authentication
        return self._receive.booked if authentication is None else self._receive.booked + authentication.frames.booked

    @property
    def wire_waiting(self) -> i64:
        """Bytes that the socket took and the peer's kernel has not; 0 for Unix sockets."""
        return socket_buffers.unsent(self._socket)

    @property
    def mute_causes(self) -> i64:
        return self.mutes.causes

    @property
    def mute_in_force(self) -> bool:
        return self.mutes.in_force

    # Called by the users of a channel.

    def send(self, run: Run) -> bool:
        return self.write_half.send(run)

    def discard(self, run: Run) -> None:
        """Release the lease of a run that is not sent on. No effect if the lease was taken over."""
        lease = run.lease
        run.lease = 0
        self._account.release(BEGUN, lease, run)

    def mute(self, cause: i64) -> bool:
        """Add one cause (a bit of ``mute``). Returns True if the mute is in force. No effect if the cause is set, or the channel closed."""
        if not self.mutes.causes & cause and self.state is not CLOSED:
            self.close_lane()
            within = self._receive.within and not self.read_half.ended
            self.mutes.add(cause, self._loop.now_ns, within=within)
        return self.mutes.in_force

    def unmute(self, cause: i64) -> None:
        """Remove one cause. Reading continues if it was the last one. No effect if the cause is not set."""
        if not self.mutes.causes & cause or self.state is CLOSED:
            return
        self.mutes.remove(cause, self._loop.now_ns)
        if self.read_half.may_read():
            self.sync_interest()
            if self.transport.has_buffered() or self._receive.has_part or self._receive.fault != OK:
                self.queue_buffered()

    def gate(self, *, asks: bool) -> None:
        """Have ``ChannelSink.may_read`` called before each read, or not."""
        self.gated = asks
        self.close_lane()

    def discard_input(self, cause: i64) -> None:
        """See ``ReadHalf.discard_input``. No effect if the channel is not open."""
        if self.is_open:
            self.read_half.discard_input(cause)

    def room(self) -> tuple[i64, bool]:
        return self.write_half.room()

    def want_room(self, held: i64 = 0) -> None:
        self.write_half.want_room(held)

    def shut_write(self) -> None:
        self.write_half.shut()

    def close(self, cause: Cause, detail: str = "", error: BaseException | None = None) -> None:
        """Close at once. No effect on a closed channel: the first cause wins. May be called from anywhere; ``closed`` is called later."""
        if self.state is CLOSED:
            return
        authentication = self._authentication
        if authentication is not None:
            self._authentication = None
            authentication.close()
            if authentication.refusal is not None:  # the first cause
                error = authentication.refusal
                cause, detail = Cause.AUTH_FAILED, str(error)
        self.state = transition(TRANSITIONS, self.state, ChannelEvent.CLOSE)
        self.is_open = False
        self.close_cause = cause
        self.detail = detail or self.detail
        self.error = error
        self.closed_ns = self._loop.now_ns
        if self.lane is not None:
            self.close_lane()
            self._loop.remove_lane(self, self.lane)
            self.lane = None
        self.read_half.close()
        self.write_half.close()
        self.mutes.end(self.closed_ns)
        if self._watch is not None:
            self._loop.cancel(self._watch)
            self._watch.release()
        self.transport.close()
        self._set_interest(UNREGISTERED)
        self._loop.defer_closed(self)

    def fail(self, error: Exception) -> None:
        """Close for an exception. One that neither the network nor the peer caused is a bug (``crash``)."""
        if isinstance(error, (TransportError, AuthenticationError, WrongProtocolError)):
            error.side = self.options.side
            in_handshake = self.state is HANDSHAKE and self.options.side == "downstream"
            self.close(cause_of(error, self.transport.wire_sent if in_handshake else 0), str(error), error)
        else:
            self.crash(error)

    def crash(self, error: Exception, place: str = "channel") -> None:
        self._loop.faults.note(place, error)
        self.close(Cause.INTERNAL, f"{type(error).__name__}: {error}", error)

    # Called by the selector.

    def start(self, watch: "Watchdog") -> None:
        """Make the first step, after the selector has the channel."""
        self._watch = watch
        try:
            if self.state is CONNECTING:
                self.wait_opening(EPOLLOUT)
            else:
                self.queue_handshake()
        except Exception as error:  # epoll takes no more descriptors
            self.crash(error)

    def on_event(self, events: i64) -> None:
        if self.lane is not None:  # it may have been opened since the wait: events that a poll leaves are handled in the next one
            self.take_begun(self.lane.close())
        try:
            if not self.is_open:
                self._on_opening(events)
                return
            if events & EPOLLOUT:
                self.write_half.on_writable()
            if events & (EPOLLIN | BROKEN) and self.is_open:
                self.read_half.on_readable(events)
        except Exception as error:
            self.fail(error)

    def open_lane(self, peer: "Channel", before_send: Callable[[bytes, int], bool] | None) -> None:
        """Have the fast path pass on what comes next, if that is possible now. The channel has just passed on a whole run to ``peer``.

        ``before_send``: is called with the bytes and the number of the whole frames of each read; it changes no channel, and raises nothing. False:
        they are not sent, and ``was_forwarded`` is told that nothing of them was.
        """
        fast_path = self._loop.fast_path
        if fast_path is not None:
            open_lane(self._loop, fast_path, self, peer, before_send)

    def close_lane(self) -> None:
        """Have Python see what comes next, and count what has come."""
        if self.lane is not None:
            self._loop.take_counts()
            self.take_begun(self.lane.close())

    def take_begun(self, data: bytes | None) -> None:
        """Take the beginning of a frame from the fast path, which counted it."""
        if data is not None:
            self.read_half.take_begun(data)

    def count_passed(
        self, frames_received: i64, bytes_received: i64, frames_sent: i64, bytes_sent: i64, wire_received: i64, wire_sent: i64, last_ns: i64
    ) -> None:
        """Count what the fast path has moved."""
        self.read_half.frames_received += frames_received
        self.read_half.bytes_received += bytes_received
        self.write_half.frames_sent += frames_sent
        self.write_half.bytes_sent += bytes_sent
        self.transport.wire_received += wire_received
        self.transport.wire_sent += wire_sent
        self.last_active_ns = max(self.last_active_ns, last_ns)

    def take_over(self, data: bytes, taken: i64, frames: i64, code: i64, rest: bytes | None) -> None:
        """Go on with a read of the fast path. ``taken``: how many bytes of these whole ``frames``, which are counted, it wrote to the peer; -1:
        nothing is counted, and ``data`` is what a read returned. ``code``: the errno with which the write, or the read, failed; 0: it did not.
        ``rest``: ciphertext that the peer's socket did not take.
        """
        try:
            if not self.is_open:
                return
            if taken >= 0:
                self.sink.was_forwarded(Run(None, 0, data, 0, i64(len(data)), frames, 0, 0, INT32), taken, code, rest)
            elif code != 0:
                raise TransportError(f"read failed: {os.strerror(code)}", errno=code)
            else:
                self.read_half.take(data)
        except Exception as error:
            self.fail(error)

    def poll_buffered(self) -> None:
        """Read what the transport has buffered, for which no event will come."""
        self._buffered_queued = False
        self.close_lane()
        try:
            if self.is_open:
                self.read_half.poll_buffered()
        except Exception as error:
            self.fail(error)

    def step_handshake(self) -> None:
        """Continue the handshake, or the authentication, as far as possible now."""
        self._handshake_queued = False
        try:
            if self.state is HANDSHAKE:
                self._step_transport()
            elif self._authentication is not None:
                self._authentication.step()
        except Exception as error:
            self.fail(error)

    def notify_write_ended(self) -> None:
        """Tell the sink that the end of our stream was sent. If the sink raises, the channel is closed."""
        try:
            self.sink.write_ended()
        except Exception as error:
            self.crash(error, "callback")

    def notify_closed(self) -> None:
        """Tell the sink that the channel is closed. If the sink raises, a fault is noted."""
        try:
            self.sink.closed()
        except Exception as error:
            self.crash(error, "callback")

    def close_socket(self) -> None:
        """Close the socket, at the end of the poll in which the channel was closed. This is the last call."""
        del self.sink  # it may refer to the channel, as the halves do
        self.read_half.release()
        self.write_half.release()
        self._socket.close()

    # Opening.

    def _on_opening(self, events: i64) -> None:
        if self.state is CONNECTING:
            raise_error_of(self._socket, connecting=True)
            self.state = transition(TRANSITIONS, self.state, ChannelEvent.CONNECTED)
            self.connected_ns = self._loop.now_ns
        if self._authentication is None:
            self.queue_handshake()
        else:
            self._authentication.on_event(events)

    def queue_handshake(self) -> None:
        """Queue the next step of the handshake or of the authentication. No effect when both are finished."""
        if not self._handshake_queued:
            self._handshake_queued = True
            self._loop.defer_handshake(self)

    def _step_transport(self) -> None:
        if self.preamble is not None and not self._step_preamble(self.preamble):
            return
        code = self.transport.handshake()
        if code == DONE:
            self._begin_authentication()
        elif code == ENDED:
            shown = self.transport.wire_sent if self.options.side == "downstream" else 0
            where = "within the handshake" + (", when it had been shown our certificate" if shown else "")
            self.close(end_of_handshake(self.transport.wire_received, shown), where)
        else:
            self.wait_opening(EPOLLOUT if code == WANT_WRITE else EPOLLIN)

    def _step_preamble(self, preamble: Preamble) -> bool:
        """Pass the preamble on. False: it is not complete."""
        code = preamble.step(self._socket)
        if code == DONE:
            self.preamble = None
            self.peer, self.destination = preamble.source or self.peer, preamble.destination
        elif code == ENDED:
            self.close(Cause.PEER_CLOSED if preamble.begun else Cause.NO_DATA, "within the PROXY protocol header")
        else:
            self.wait_opening(EPOLLOUT if code == WANT_WRITE else EPOLLIN)
        return code == DONE

    def wait_opening(self, wanted: i64) -> None:
        """Set the events that the handshake or the authentication waits for, and start the watchdog."""
        self._set_interest(wanted)
        watch = self._watch
        if watch is not None and watch.deadline_ns == NEVER:  # only here, because an opening that needs no wait needs no timeout
            watch.check(self._loop.now_ns)

    def _begin_authentication(self) -> None:
        self.state = transition(TRANSITIONS, self.state, ChannelEvent.SECURED)
        self.secured_ns = self.proof_began_ns = self._loop.now_ns
        self.identity = self.transport.identity()
        self.identity.peer = self.peer
        authenticator = self.options.authenticators.make(self.identity)
        if self.login is not None and authenticator.complete:
            authenticator = self.login.make(self.identity)
        if authenticator.complete:
            self.become_ready(authenticator)
            return
        self._authentication = Authentication(self, self._loop, self._socket, self.transport, self._account, self.options, authenticator)
        self._authentication.step()

    def admits_principal(self, principal: str) -> bool:
        self.principal = principal
        return self.sink.admits_principal(principal)

    def become_ready(self, authenticator: Authenticator) -> None:
        """Take over the principal from a complete authenticator, and close the authenticator."""
        self._authentication = None
        self.principal = authenticator.principal
        self.principal_type = authenticator.principal_type
        self.expires_ns, self.renew_ns = authenticator.expires_ns, authenticator.renew_ns
        authenticator.close()
        if self.identity is not None:
            self.identity.certificate = None  # half a KiB or more
        self.state = transition(TRANSITIONS, self.state, ChannelEvent.AUTHENTICATED)
        self.is_open = True
        self.write_half.open()
        self.ready_ns = self.last_active_ns = self._loop.now_ns
        if self._watch is not None:
            self._watch.check(self.ready_ns)
        self.sink.ready()
        if self.is_open:
            if self.mutes.causes == 0:
                self.sync_interest()
            else:
                self._set_interest(EPOLLIN)  # as after any mute, because most mutes end before the first event
            if self.transport.has_buffered() and self.read_half.may_read():
                self.queue_buffered()

    # Called by the halves.

    def on_input_ended(self, *, clean: bool) -> None:
        """Note that the peer ended its stream. ``clean``: as its protocol requires."""
        self.state = transition(TRANSITIONS, self.state, ChannelEvent.END_OF_STREAM)
        if not clean:
            self.detail = "no_close_notify"

    def on_output_ended(self) -> None:
        self.state = transition(TRANSITIONS, self.state, ChannelEvent.SHUT)
        self._loop.defer_write_ended(self)

    def after_read(self) -> None:
        """Continue writes that may have waited for a read: ciphertext, or the end of our stream."""
        if self.shutting:
            self.write_half.try_shut()
        if self.transport.pending_write != 0:
            self.sync_interest()

    def on_unwanted(self, events: i64) -> None:
        """Drop the interest, or, if the event cannot be masked, unregister the descriptor."""
        if self.read_half.discards and not self.read_half.ended:
            self.read_half.throw_away()
            return
        if not events & BROKEN:
            self.sync_interest()
            return
        raise_error_of(self._socket)
        if self._send.active:
            self.write_half.on_writable()
        if self.is_open and not self.hung:
            self.hung = True
            self._set_interest(UNREGISTERED)

    def queue_buffered(self) -> None:
        """Queue a call of ``poll_buffered``."""
        if not self._buffered_queued:
            self._buffered_queued = True
            self._loop.defer_buffered(self)

    def sync_interest(self) -> None:
        """Update the events that epoll reports for the channel."""
        if not self.is_open:
            return
        reads, writes = self.read_half, self.write_half
        wanted: i64 = 0
        low_memory = reads.low_memory
        if reads.discards:
            wanted = 0 if reads.ended else EPOLLIN
        elif low_memory is None:
            wanted = EPOLLIN if reads.may_read() else 0
        elif reads.may_read() and not (reads.retry_armed and low_memory.is_awaiting):
            wanted = EPOLLIN if low_memory.threshold == 1 else EPOLLIN | EPOLLRDHUP
        if (self._send.active and not writes.holding) or self.transport.pending_write != 0 or (writes.room_wanted and not writes.retry_armed):
            wanted |= EPOLLOUT
        if self.hung:
            if not wanted & EPOLLIN:
                return
            self.hung = False
        self._set_interest(wanted)

    def _set_interest(self, wanted: i64) -> None:
        if wanted != self._interest:
            self._loop.change_interest(self, self._interest, wanted)
            self._interest = wanted
