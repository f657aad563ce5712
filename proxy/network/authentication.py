"""The authentication of a channel: drives its authenticator while the channel is AUTHENTICATING.

It flushes before each step, sets the interest for epoll, wakes the authenticator, and handles a refusal: first a delay, which slows down guessing,
then the answer, then the close. While it waits neither to read nor to write, it waits for EPOLLRDHUP only, so that a close by the peer is noticed
but unread bytes do not wake the selector again and again. The whole exchange must end within the channel's ``handshake_timeout``.
"""

import socket
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import WAIT, Authenticator, Waker
from framegate.proxy.network.close_cause import raise_error_of
from framegate.proxy.network.epoll import BROKEN, EPOLLIN, EPOLLOUT, EPOLLRDHUP, UNREGISTERED
from framegate.proxy.network.frame_exchange import TransportFrames
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.socket_buffers import A_WHILE_NS
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.network.transport import DONE, WANT_READ, Transport

if TYPE_CHECKING:
    from framegate.proxy.network.channel import Channel
    from framegate.proxy.network.selector import Selector


class Authentication(Waker):
    """The authentication of one channel, from the end of the transport's handshake until the channel is READY or closed."""

    __deletable__ = ("authenticator",)

    def __init__(
        self,
        channel: "Channel",
        loop: "Selector",
        sock: socket.socket,
        transport: Transport,
        account: Account,
        options: ChannelOptions,
        authenticator: Authenticator,
    ) -> None:
        self.authenticator: Authenticator = authenticator  # the channel's
        self.refusal: AuthenticationError | None = None  # the reason, once the peer is refused
        self.frames: Final = TransportFrames(transport, account, options.side)  # the frames exchanged with the peer
        self._channel: Channel | None = channel
        self._loop: Final = loop
        self._socket: Final = sock
        self._transport: Final = transport
        self._options: Final = options
        self._interest: i64 = 0
        self._started: bool = False
        self._wake_ns: i64 = NEVER
        self._answer_ns: i64 = NEVER
        self._answered: bool = False
        self._timer: Final = CallbackTimer(self._on_time)

    # Called by the authenticator.

    def now_ns(self) -> i64:
        return self._loop.now_ns

    def wake(self) -> None:
        if self._channel is not None:
            self._channel.queue_handshake()

    def wake_at(self, deadline_ns: i64) -> None:
        self._wake_ns = deadline_ns
        if self._channel is not None and self.refusal is None:
            self._arm(deadline_ns)

    def admits_principal(self, principal: str) -> bool:
        channel = self._channel
        return channel is not None and channel.admits_principal(principal)

    # Called by the channel.

    def step(self) -> None:
        try:
            wanted = self._step() if self.refusal is None else self._step_refusal()
        except AuthenticationError as error:
            wanted = self._refuse(error)
        self._wait(wanted)

    def on_event(self, events: i64) -> None:
        """Handle an event: the socket is readable, writable or broken."""
        if self._interest & (EPOLLIN | EPOLLOUT):
            self.wake()
        else:
            self._wait(self._on_hang_up(events))

    def close(self) -> None:
        """End the authentication, because the channel is closed. Must be called once."""
        authenticator = self._let_go()
        try:
            authenticator.close()
        except Exception as error:  # the channel must close all the same
            self._loop.faults.note("callback", error)

    # The steps. Each returns the interest for epoll; once the channel is READY or closed the value is not used.

    def _step(self) -> i64:
        frames = self.frames
        if not frames.flush():
            return EPOLLOUT
        authenticator = self.authenticator
        if not self._started:
            self._started = True
            authenticator.start(frames, self)
        code = authenticator.step()
        channel = self._channel
        if channel is None:  # closed from within the step
            return 0
        if frames.is_sending:
            return EPOLLOUT
        if code == DONE:
            assert authenticator.complete, "a complete authenticator has a principal"
            channel.become_ready(self._let_go())
            return 0
        if code == WANT_READ:
            return self._want_read(channel)
        return EPOLLRDHUP if code == WAIT else EPOLLOUT

    def _want_read(self, channel: "Channel") -> i64:
        frames = self.frames
        if frames.ended:
            channel.close(Cause.NO_DATA if self._transport.wire_received == 0 else Cause.PEER_CLOSED, "within the authentication")
        elif frames.awaits_memory:
            self._arm(min(self._loop.now_ns + A_WHILE_NS, self._wake_ns))
            return EPOLLRDHUP
        elif self._transport.has_buffered():
            channel.queue_handshake()
        return EPOLLIN

    def _on_hang_up(self, events: i64) -> i64:
        """Handle the end of the peer's stream while nothing is read or written."""
        raise_error_of(self._socket)
        waits_for_more = self.frames.awaits_memory
        if self.refusal is not None or (not waits_for_more and self._transport.obtainable(1) == 0):
            if self._channel is not None:
                self._channel.close(Cause.PEER_CLOSED, "within the authentication")
        elif waits_for_more:  # nothing more will come: read what is here of the frame, and the end of the stream behind it
            self.frames.reads_out = True
            self.wake()
        return UNREGISTERED if events & BROKEN else 0

    def _refuse(self, error: AuthenticationError) -> i64:
        if self._channel is None:
            return 0
        error.side = self._options.side
        error.__traceback__ = None  # it refers to the authenticator, which refers to this object
        self.refusal = error
        self._wake_ns = NEVER
        self._answer_ns = self._loop.now_ns + self._options.failed_authentication_delay_ns
        if self._answer_ns > self._loop.now_ns:
            self._loop.refusals.add(self._timer, self._loop.now_ns)
        self._arm(self._answer_ns)
        return self._step_refusal()

    def _step_refusal(self) -> i64:
        """After the delay, send the answer, then close."""
        refusal = self.refusal
        if refusal is None or self._loop.now_ns < self._answer_ns:
            return EPOLLRDHUP
        if not self.frames.flush():  # frames that were sent before the answer
            return EPOLLOUT
        if not self._answered:
            self._answered = True
            if refusal.answer and not self.frames.send(refusal.answer):
                return EPOLLOUT
        self.frames.discard_input()
        if self._channel is not None:
            self._channel.close(Cause.AUTH_FAILED)
        return 0

    def _wait(self, wanted: i64) -> None:
        self._interest = wanted
        if self._channel is not None:
            self._channel.wait_opening(wanted)

    def _let_go(self) -> Authenticator:
        authenticator = self.authenticator
        del self.authenticator  # it refers to this object, its waker
        self._channel = None
        self._loop.cancel(self._timer)
        self._loop.refusals.remove(self._timer)
        self._timer.release()
        self.frames.close()
        return authenticator

    def _arm(self, deadline_ns: i64) -> None:
        if deadline_ns == NEVER:
            self._loop.cancel(self._timer)
        else:
            self._loop.call_at(deadline_ns, self._timer)

    def _on_time(self) -> None:
        if self.refusal is not None:  # the delay is over, or too many refusals wait
            self._answer_ns = self._loop.now_ns
        if self._wake_ns <= self._loop.now_ns:
            self._wake_ns = NEVER
        if self._channel is not None:
            self._arm(self._wake_ns)
            self._channel.queue_handshake()
