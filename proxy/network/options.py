"""The settings that the channels of one side of one listener share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.config.model import SocketConfig
from framegate.proxy.errors import Side
from framegate.proxy.network.authenticator import AuthenticatorFactory, CertificateAuthenticators
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.proxy_protocol import ProxyProtocol
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.network.stats import SideStats

if TYPE_CHECKING:
    import ssl

    from framegate.proxy.network.tls_context import ServerStore


class TlsSettings:
    """The TLS settings of a side."""

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
        self.context: Final = context  # never changed once in use; a reload stores a new ``TlsSettings``
        self.server_side: Final = server_side  # framegate is the server
        self.server_name: Final = server_name  # SNI, and the name for which the server's certificate is verified; only for clients
        self.store: Final = store  # contexts by host, of which ``context`` is the default, and protocols; only for servers that read the ClientHello
        self.number: Final[i64] = number  # counts the settings that a listener or upstream has had; 0: not counted
        # the fingerprint of the certificate that is shown to the peer; empty if none is shown, or it is not known. ``shown_by``: those of the other
        # contexts of the store.
        self.shown: Final = shown
        self._shown_by: Final[dict[ssl.SSLContext, str]] = {} if shown_by is None else dict(shown_by)

    def shown_of(self, context: "ssl.SSLContext") -> str:
        """Return the fingerprint of the certificate that this context shows."""
        return self._shown_by.get(context, self.shown)


class ChannelOptions:
    """The options of channels. A change applies to channels that are opened afterwards, except for ``limit.value``, which applies at once."""

    def __init__(
        self,
        *,
        side: Side,
        limit: ReceiveLimit,
        stats: SideStats,
        handshake_timeout_ns: i64 = 10_000_000_000,
        idle_ns: i64 = 0,
        max_age_ns: i64 = 0,
        stall_ns: i64 = 0,
        min_rate: i64 = 0,
        tls: TlsSettings | None = None,
        authenticators: AuthenticatorFactory | None = None,
        failed_authentication_delay_ns: i64 = 0,
        account: Account | None = None,
        cut_from: i64 = NEVER_CUT,
        first_piece: i64 = 0,
        keeps_first: bool = False,
        framing: Framing = INT32,
        onward: Framing | None = None,
        socket: SocketConfig | None = None,
        sasl_limit: i64 = NEVER_CUT,
        proxy_protocol: ProxyProtocol | None = None,
    ) -> None:
        self.side: Final[Side] = side  # ``downstream`` for clients, ``upstream`` for upstreams
        self.limit: Final = limit  # the max_receive_size of frames from that side
        self.stats: Final = stats  # the counters of that side
        self.handshake_timeout_ns = handshake_timeout_ns  # from accept, or from the first SYN, to READY
        self.idle_ns = idle_ns  # the time without a byte in either direction after which a channel is closed; 0: never
        self.max_age_ns = max_age_ns  # the age from which on ``ChannelSink.aged`` is called, a tenth more or less by the channel's id; 0: never
        self.stall_ns = stall_ns  # the window over which ``min_rate`` must be met; 0 switches stall detection off
        self.min_rate = min_rate  # bytes per second that a frame in progress or a pending send must move
        self.tls = tls  # None for plaintext
        self.account: Final = account  # the listener's account of the memory pool; None: the common one
        self.cut_from: Final[i64] = cut_from  # larger frames, in bytes with the header, are cut through; or ``NEVER_CUT``
        # the least bytes of the first piece of such a frame, besides the beginning of the body; below ``cut_from``
        self.first_piece: Final[i64] = first_piece
        # the first piece is not shorter while memory is short either, and smaller frames are not cut through then
        self.keeps_first: Final = keeps_first
        self.framing: Final = framing  # the framing of that side
        self.onward: Final = onward  # the framing of the other side, if it differs: frames that it cannot carry are refused
        # the factory of authenticators
        self.authenticators: AuthenticatorFactory = CertificateAuthenticators() if authenticators is None else authenticators
        # from a refusal to its answer and the close; part of ``handshake_timeout_ns``
        self.failed_authentication_delay_ns = failed_authentication_delay_ns
        self.socket: Final = socket  # socket options; None: the kernel's. An accepted TCP socket inherits them from its listening socket.
        # the largest body of a frame with which a client authenticates again; ``NEVER_CUT``: such frames are not looked for
        self.sasl_limit: Final[i64] = sasl_limit
        self.proxy_protocol: Final = proxy_protocol  # clients are proxies, whose connections begin with a header; None: they do not
