"""Control's own connections to Kafka brokers: over TCP or TLS, logged in if the upstream has a login, one frame asked and answered at a time."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from framegate.control import asyncio_tls
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.proxy_protocol import header_bytes
from framegate.proxy.server.rows import Store, upstream_owner

if TYPE_CHECKING:
    import ssl

    from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse
    from framegate.proxy.auth.client import SaslClientSettings

MAX_ANSWER: Final = 1 << 20  # bytes of an answer; who announces more does not speak Kafka's protocol
Wire = Sequence[Any]  # an address as the link has it (``resolver``)


class Tls(NamedTuple):
    """How an endpoint is spoken to: the context, the name that its certificate must have, and ``UpstreamTls.pins``."""

    context: "ssl.SSLContext"
    name: str
    pins: tuple[str, ...] = ()


TlsOf = Callable[[str], Tls | None]
"""How an endpoint is spoken to, by its host; None for plaintext. Takes milliseconds; may raise ProxyError. Any thread."""


class Login(NamedTuple):
    """A login of framegate's own. ``answer``: to what the mechanism asks for; may read files and take milliseconds; any thread."""

    settings: "SaslClientSettings"
    answer: "Callable[[AuthRequest], AuthResponse]"


def tls_of(upstream: UpstreamConfig, stores: Callable[[], Mapping[str, Store]]) -> TlsOf:
    """How the endpoints of an upstream are spoken to. ``stores``: the certificates, keys and authorities in force, by owner."""

    def tls(host: str) -> Tls | None:
        config = upstream.tls
        if config is None:
            return None
        from framegate.proxy.network.tls_context import upstream_context  # it loads OpenSSL

        files = {path: content.encode("latin-1") for path, content in stores()[upstream_owner(upstream.name)].files.items()}
        return Tls(upstream_context(config, files), config.server_name or host.rstrip(".") or "localhost", config.pins)

    return tls


def own_header(upstream: UpstreamConfig) -> bytes:
    """The header of the PROXY protocol with which connections of control's own begin; empty: the upstream takes none."""
    return b"" if upstream.send_proxy_protocol is None else header_bytes(upstream.send_proxy_protocol, "", "")


class BrokerConnection:
    """An open connection. Errors are OSError (a TimeoutError is one) and EOFError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, body: bytes) -> None:
        self._writer.write(len(body).to_bytes(4, "big") + body)
        await self._writer.drain()

    async def receive(self, most: int = MAX_ANSWER) -> bytes:
        """The body of the next frame, of at most so many bytes."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > most:
            raise OSError(f"an answer of {size} bytes: it does not speak Kafka's protocol")
        return await self._reader.readexactly(size)

    async def ask(self, body: bytes, most: int = MAX_ANSWER) -> bytes:
        """Send a frame, and return the body of the next one."""
        await self.send(body)
        return await self.receive(most)


@contextlib.asynccontextmanager
async def connected(address: Wire, tls_of: TlsOf, header: bytes = b"") -> AsyncIterator[BrokerConnection]:
    """Connect, with TLS if the upstream has it; the connection is closed at the end, also of a cancelled call. The caller limits the time.
    ``header``: of the PROXY protocol, before TLS. Raises OSError: no connection, or no TLS. ProxyError: the context cannot be made, or the
    certificate's key is not one of ``pins``.
    """
    host, family, *rest = address
    tls = await asyncio.to_thread(tls_of, host)  # to build a context takes milliseconds, and to read the system's authorities tens
    context, name = (None, None) if tls is None else (tls.context, tls.name)
    if tls is not None:
        asyncio_tls.load()
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, rest[0] if family == socket.AF_UNIX else tuple(rest))
        await asyncio.get_running_loop().sock_sendall(sock, header)
        reader, writer = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    try:
        if tls is not None and tls.pins:
            _check_key(writer, tls.pins)
        yield BrokerConnection(reader, writer)
    finally:
        writer.transport.abort()


def _check_key(writer: asyncio.StreamWriter, pins: tuple[str, ...]) -> None:
    """As processors do, who say more of it. Raises AuthenticationError."""
    from framegate.proxy.auth.certificates import key_pin

    pin = key_pin(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    if pin not in pins:
        raise AuthenticationError(f"the certificate has the key {pin}, which is none of pins")
