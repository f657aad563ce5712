"""What is known about a channel: names, numbers and times, for whoever lists, logs or watches it. Behaviour is in ``channel``."""

import socket
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from proxy.network import socket_buffers, state
from proxy.network.careful import Careful
from proxy.network.cause import Cause
from proxy.network.channel_sink import ChannelSink
from proxy.network.fd_handler import FdHandler
from proxy.network.memory_pool import Account
from proxy.network.mute import MuteSet, MuteState
from proxy.network.options import ChannelOptions
from proxy.network.receive import Receive
from proxy.network.send import Send
from proxy.network.state import ChannelState
from proxy.network.transport import Identity, Transport

if TYPE_CHECKING:
    from proxy.network.selector import Selector

__all__ = ["ChannelFacts"]

MUTING: Final = MuteState.MUTING


class ChannelFacts(FdHandler):
    """One connection, as others see it.

    Attributes:
        id: see ``connection_id``; both channels of a pair may carry the same.
        sink: is told what happens; the channel lets go of it when it was told ``closed``.
        gated: the sink is asked before each read (``ChannelSink.may_read``).
        options: shared with others of its side.
        peer: its address as text.
        state, closed_in: where the channel is in its life; in which state it was closed.
        hung: the descriptor left the selector because the peer is gone while we are muted.
        discards_input: what the peer sends is read off and thrown away (``Channel.discard_input``).
        principal, identity: who the peer is; set before ``ready``.
        close_cause, detail, error: why it was closed.
        cut_short_at: bytes that were passed on of a frame that was cut through and never became whole; 0: there was none.
        frames_received, bytes_received, frames_sent, bytes_sent: of frames, headers counted; bytes include parts of frames.
        lost_bytes: received bytes of a frame that never became whole; unsent_bytes: bytes of the pending send when it was closed.
        opened_ns, connected_ns, ready_ns, closed_ns, last_active_ns: on the selector's clock; 0 when it did not come to that.
    """

    __deletable__ = ("sink",)

    def __init__(
        self,
        selector: "Selector",
        sock: socket.socket,
        transport: Transport,
        channel_id: i64,
        options: ChannelOptions,
        sink: ChannelSink,
        peer: str,
        *,
        connecting: bool,
    ) -> None:
        self.id: Final[i64] = channel_id
        self.sink: ChannelSink = sink
        self.gated: bool = False
        self.options: Final = options
        self.peer: Final = peer
        self.fd: Final[i64] = sock.fileno()
        self.state: ChannelState = state.CONNECTING if connecting else state.HANDSHAKE
        self.closed_in: ChannelState | None = None
        self.hung: bool = False
        self.discards_input: bool = False
        self.principal: str = ""
        self.identity: Identity | None = None
        self.close_cause: Cause | None = None
        self.detail: str = ""
        self.error: BaseException | None = None
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.lost_bytes: i64 = 0
        self.cut_short_at: i64 = 0
        self.unsent_bytes: i64 = 0
        self.opened_ns: i64 = selector.now_ns
        self.connected_ns: i64 = 0 if connecting else selector.now_ns
        self.ready_ns: i64 = 0
        self.closed_ns: i64 = 0
        self.last_active_ns: i64 = selector.now_ns
        self._selector: Final = selector
        self._account: Final[Account] = options.account or selector.pool.common
        self._is_upstream: Final = options.side == "upstream"
        self._stats: Final = options.stats
        self._socket: Final = sock
        self._transport: Final = transport
        self._receive: Final = Receive(self._account, options.limit, options.stats, options.cut_from, options.first_piece)
        self._send: Final = Send(self._account)
        self._mutes: Final = MuteSet(options.stats)
        self._care: Careful | None = None
        self._open: bool = False
        self._read_ended: bool = False
        self._shutting: bool = False
        self._room_wanted: bool = False  # somebody waits for our send buffer
        self._room_held: i64 = 0  # and holds so much

    @property
    def is_open(self) -> bool:
        """READY or later, and not closed."""
        return self._open

    @property
    def can_send(self) -> bool:
        """No send is pending, and the stream is open for writing."""
        return self._open and not self._send.active and not self._shutting

    @property
    def pending_send(self) -> i64:
        """Bytes that wait for the socket, ciphertext included."""
        return self._send.remaining + self._transport.pending_write

    @property
    def staged(self) -> i64:
        """Bytes of the frame begun."""
        return self._receive.staged

    @property
    def begun_bytes(self) -> i64:
        """Bytes of the frame begun that have come: staged, passed on already, or waiting in the kernel."""
        return self._receive.staged + self._receive.passed + self.bytes_arrived - self.bytes_received

    @property
    def booked_begun(self) -> i64:
        """Bytes booked at the memory pool for the frame begun."""
        return self._receive.booked

    @property
    def booked_pending(self) -> i64:
        """Likewise, for the pending send."""
        return self._send.booked

    @property
    def booked_tls(self) -> i64:
        """Likewise, for ciphertext that waits."""
        return self._transport.booked

    @property
    def leased(self) -> i64:
        """Bytes booked at the memory pool for this channel."""
        return self._receive.booked + self._send.booked + self._transport.booked

    @property
    def mute_causes(self) -> i64:
        """Why the channel is not read, as bits of ``mute``."""
        return self._mutes.causes

    @property
    def mute_state(self) -> MuteState:
        """What the causes come to."""
        return self._mutes.state

    @property
    def mute_count(self) -> i64:
        """Causes that were set, ever."""
        return self._mutes.count

    @property
    def mute_in_force(self) -> bool:
        """No further size header will be read until a cause goes away."""
        return self._mutes.in_force

    @property
    def is_receiving(self) -> bool:
        """A frame is begun, and we wait for the peer to send the rest."""
        return (self._receive.within or (self._care is not None and self._care.is_awaiting)) and self._may_read()

    @property
    def is_within(self) -> bool:
        """A frame is begun, and not whole."""
        return self._receive.within

    @property
    def is_within_cut(self) -> bool:
        """A frame is cut through, and not whole."""
        return self._receive.passed != 0

    @property
    def cut_at(self) -> i64:
        """Bytes that were passed on of a frame that is cut through and not whole, or never was; 0: there is none."""
        return self.cut_short_at or self._receive.passed

    @property
    def bytes_arrived(self) -> i64:
        """Bytes received, and those that lie in the kernel for a frame that is to be whole there."""
        if self._care is None or not self._care.is_awaiting:
            return self.bytes_received
        return self.bytes_received + socket_buffers.queued(self._socket)

    @property
    def is_sending(self) -> bool:
        """Bytes wait for the peer to take them; here, or (while memory is short) where they come from."""
        return self._send.active or self._transport.pending_write != 0 or self._room_wanted

    @property
    def held_for_peer(self) -> i64:
        """Bytes booked at the memory pool that wait for the peer to take what was sent before: the pending send, and what waits for room."""
        return self._send.booked + self._transport.booked + (self._room_held if self._room_wanted else 0)

    @property
    def send_number(self) -> i64:
        """Counts the pending sends that there were."""
        return self._send.number

    @property
    def wire_sent(self) -> i64:
        """Bytes that the socket took, of TLS too."""
        return self._transport.wire_sent

    @property
    def wire_taken(self) -> i64:
        """Bytes that the peer's kernel took: of those that the socket took, what does not lie in it any more, as far as it says."""
        return self._transport.wire_sent - socket_buffers.unsent(self._socket)

    @property
    def wire_waiting(self) -> i64:
        """Bytes that the socket took and the peer's kernel has not, as far as it says."""
        return socket_buffers.unsent(self._socket)

    def cut_frame_short(self, passed: i64) -> None:
        """The frame that is cut through, and of which so many bytes were passed on, will not be completed; harmless when that was said before."""
        if self.cut_short_at == 0:
            self.cut_short_at = passed
            self.count_cut_short()
            self._stats.refused_incomplete += 1
        self._receive.abandoned = True

    def count_cut_short(self) -> None:
        """A frame that was cut through ended here, or went out here, without its end."""
        self._stats.cut_short += 1

    def muted_ns(self, cause: i64) -> i64:
        """Since when the cause is set, on the selector's clock; 0 when it is not."""
        return self._mutes.since_ns(cause)

    @property
    def first_muted_ns(self) -> i64:
        """Since when the oldest of the causes is set, on the selector's clock; 0 when there is none."""
        return self._mutes.first_ns

    def mute_summary(self) -> dict[str, dict[str, int]]:
        """How often each cause was set, and for how long in ns, without the time of those that are set now."""
        return self._mutes.summary()

    def _may_read(self) -> bool:
        return not self._read_ended and (self._mutes.causes == 0 or self._mutes.state is MUTING)
