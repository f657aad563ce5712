"""What the channels of one side of one listener share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.config.model import SocketConfig
from framegate.proxy.errors import Side
from framegate.proxy.network.authenticator import AuthenticatorFactory, CertificateAuthenticators
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.network.stats import SideStats

if TYPE_CHECKING:
    import ssl

    from framegate.proxy.network.tls_store import ServerStore

__all__ = ["ChannelOptions", "TlsSettings"]


class TlsSettings:
    """How a channel speaks TLS.

    Attributes:
        context: never changed once in use; a reload stores a new ``TlsSettings``.
        server_side: we are the server.
        server_name: SNI, and the name that the server's certificate is verified against; only for clients.
        store: only for servers that look at what a client asks for: its contexts by host, of which ``context`` is the default, and its protocols.
        number: which one it is of all that its listener or upstream had, in their order; 0: nobody counts.
        shown: the fingerprint of the certificate that the peer is shown; empty: none is, or nobody knows. ``shown_by``: those of other contexts of
            the store.
    """

    def __init__(
        self,
        context: "ssl.SSLContext",
        *,
        server_side: bool,
        server_name: str | None = None,
        store: "ServerStore | None" = None,
        number: i64 = 0,
        shown: str = "",
        shown_by: "Mapping[ssl.SSLContext, str] | None" = None,
    ) -> None:
        self.context: Final = context
        self.server_side: Final = server_side
        self.server_name: Final = server_name
        self.store: Final = store
        self.number: Final[i64] = number
        self.shown: Final = shown
        self._shown_by: Final[dict[ssl.SSLContext, str]] = {} if shown_by is None else dict(shown_by)

    def shown_of(self, context: "ssl.SSLContext") -> str:
        """The fingerprint of the certificate that a peer was shown who met this context."""
        return self._shown_by.get(context, self.shown)


class ChannelOptions:
    """Shared by channels; what is stored here holds for channels that are opened afterwards, except ``limit.value``, which holds at once.

    Attributes:
        side: ``downstream`` for clients, ``upstream`` for upstreams.
        limit: the max_receive_size of what that side sends.
        stats: where its channels count.
        handshake_timeout_ns: from accept, or from the first SYN, to READY.
        idle_ns: without a byte in either direction; 0 never expires.
        stall_ns: the window over which ``min_rate`` must be met; 0 switches stall detection off.
        min_rate: bytes per second that a frame begun or a pending send must move.
        tls: None for plaintext.
        account: what the listener holds of the memory pool; None: the common one.
        cut_from: frames of more bytes than this, header counted, are passed on in pieces; ``NEVER_CUT``.
        first_piece: bytes that the first of them has at least, besides the beginning of the body; below ``cut_from``.
        framing: what that side speaks.
        onward: what the other side speaks, when it is another: frames that it cannot carry are refused.
        authenticators: the factory of authenticators.
        sasl_limit: bytes of the body of a client's frame to authenticate with again, at most; ``NEVER_CUT`` where nobody looks for such frames.
        failed_authentication_delay_ns: from a refusal to its answer, and the close; part of ``handshake_timeout_ns``.
        socket: what the kernel is told of a socket; None: nothing. A TCP socket that was accepted has it of its listening socket.
    """

    def __init__(
        self,
        *,
        side: Side,
        limit: ReceiveLimit,
        stats: SideStats,
        handshake_timeout_ns: i64 = 10_000_000_000,
        idle_ns: i64 = 0,
        stall_ns: i64 = 0,
        min_rate: i64 = 0,
        tls: TlsSettings | None = None,
        authenticators: AuthenticatorFactory | None = None,
        failed_authentication_delay_ns: i64 = 0,
        account: Account | None = None,
        cut_from: i64 = NEVER_CUT,
        first_piece: i64 = 0,
        framing: Framing = INT32,
        onward: Framing | None = None,
        socket: SocketConfig | None = None,
        sasl_limit: i64 = NEVER_CUT,
    ) -> None:
        self.side: Final[Side] = side
        self.limit: Final = limit
        self.stats: Final = stats
        self.handshake_timeout_ns = handshake_timeout_ns
        self.idle_ns = idle_ns
        self.stall_ns = stall_ns
        self.min_rate = min_rate
        self.tls = tls
        self.account: Final = account
        self.cut_from: Final[i64] = cut_from
        self.first_piece: Final[i64] = first_piece
        self.framing: Final = framing
        self.onward: Final = onward
        self.authenticators: AuthenticatorFactory = CertificateAuthenticators() if authenticators is None else authenticators
        self.failed_authentication_delay_ns = failed_authentication_delay_ns
        self.socket: Final = socket
        self.sasl_limit: Final[i64] = sasl_limit
