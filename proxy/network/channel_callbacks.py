"""The interface of a channel to its halves, and of its watchdog to the channel."""

import abc

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network.authenticator import Authenticator
from framegate.proxy.network.event_loop import PolledChannel
from framegate.proxy.network.run import Run
from framegate.proxy.network.timer import Timer

__all__ = ["ChannelCallbacks", "ChannelWatch"]


class ChannelCallbacks(PolledChannel):
    """A channel as its halves see it.

    Attributes:
        gated: the sink is asked before each read (``ChannelSink.may_read``).
        shutting: our end of the stream is to go out, or is out.
        last_active_ns: when a byte was read or written last, on the selector's clock.
    """

    def __init__(self, fd: i64, now_ns: i64) -> None:
        super().__init__(fd)
        self.gated: bool = False
        self.shutting: bool = False
        self.last_active_ns: i64 = now_ns

    @abc.abstractmethod
    def mute(self, cause: i64) -> bool:
        """Add one cause (a bit of ``mute``); True when the mute is in force."""

    @abc.abstractmethod
    def unmute(self, cause: i64) -> None:
        """Take one cause away."""

    @abc.abstractmethod
    def discard(self, run: Run) -> None:
        """Give up a run that is not sent on: its lease goes back."""

    @abc.abstractmethod
    def close(self, cause: Cause, detail: str = "", error: BaseException | None = None) -> None:
        """Close, at once."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Close for what was raised, because of the network or of the peer; anything else is a bug (``crash``)."""

    @abc.abstractmethod
    def crash(self, error: Exception, place: str = "channel") -> None:
        """Close for a bug of ours."""

    @abc.abstractmethod
    def sync_interest(self) -> None:
        """Tell epoll what the channel waits for, if that has changed."""

    @abc.abstractmethod
    def queue_handshake(self) -> None:
        """Have the next step of the handshake, or of the authentication, made soon. Harmless when it is over."""

    @abc.abstractmethod
    def wait_opening(self, wanted: i64) -> None:
        """Tell epoll what the handshake, or the authentication, waits for, and have it watched."""

    @abc.abstractmethod
    def admits_principal(self, principal: str) -> bool:
        """As ``ChannelSink.admits_principal``."""

    @abc.abstractmethod
    def become_ready(self, authenticator: Authenticator) -> None:
        """The authenticator is complete: take over what it knows, and close it."""

    @abc.abstractmethod
    def queue_buffered(self) -> None:
        """Bytes can be read that no event announces."""

    @abc.abstractmethod
    def on_unwanted(self, events: i64) -> None:
        """An event came for a channel that must not be read."""

    @abc.abstractmethod
    def on_input_ended(self, *, clean: bool) -> None:
        """The peer sends no more; ``clean``: as its protocol wants it."""

    @abc.abstractmethod
    def on_output_ended(self) -> None:
        """Our end of the stream is out."""

    @abc.abstractmethod
    def after_read(self) -> None:
        """A read may have let go on what waits to be written: ciphertext, or our end of the stream."""


class ChannelWatch(Timer):
    """Closes a channel when something takes too long."""

    @abc.abstractmethod
    def check(self, now_ns: i64) -> None:
        """Close the channel when it takes too long, else arm for when it might."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of the channel, which is closed."""
