"""TLS contexts of a throw-away world: an authority everybody trusts, a server, two clients, and a stranger."""

import dataclasses
import ssl
from pathlib import Path
from typing import Any

from framegate.proxy.config.tls import ListenerTls
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.tls_context import client_context, server_context, server_store
from tests.fakes.certificates import Authority
from tests.fakes.network import NetBench, frame, run_of, tcp_pair


@dataclasses.dataclass(frozen=True)
class TlsWorld:
    """Paths and settings."""

    # authority, other_authority: PEM files
    authority: str
    other_authority: str
    # server, client, stranger: certificate and key; the stranger's are signed by the other authority
    server: tuple[str, str]
    client: tuple[str, str]
    stranger: tuple[str, str]

    @classmethod
    def make(cls, folder: Path) -> "TlsWorld":
        authority, other = Authority(folder), Authority(folder, "other authority")
        return cls(str(authority.path), str(other.path), authority.leaf("server"), authority.leaf("client"), other.leaf("stranger"))

    def listener(self, **keys: Any) -> ListenerTls:
        """A listener's settings with the server's certificate, and what else is given."""
        return ListenerTls(certificate=self.server[0], key=self.server[1], **keys)

    def listener_settings(self, *, reads_host: bool = False, **keys: Any) -> TlsSettings:
        """As a processor makes them of a listener's keys."""
        store = server_store(self.listener(**keys), reads_host=reads_host)
        return TlsSettings(store.default, server_side=True, store=store)

    def server_settings(self, *, client_auth: str = "none", version: str = "1.2") -> TlsSettings:
        ca = None if client_auth == "none" else self.authority
        return TlsSettings(server_context(*self.server, client_auth=client_auth, client_ca=ca, min_version=version), server_side=True)

    def client_settings(
        self, *, identity: tuple[str, str] | None = None, version: str = "1.3", name: str = "localhost", ca: str | None = None
    ) -> TlsSettings:
        certificate, key = identity or (None, None)
        context = client_context(ca=ca or self.authority, certificate=certificate, key=key)
        if version == "1.2":
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        return TlsSettings(context, server_side=False, server_name=name)


def tls_pair(net: NetBench, world: TlsWorld, **options: Any) -> tuple[Channel, Channel]:
    """A server's channel, with these options, and a client's, both in the same selector."""
    ours, peer = tcp_pair()
    server = net.register(ours, 1, net.options(tls=world.server_settings(), **options))
    client = net.register(peer, 2, net.options(side="upstream", tls=world.client_settings()))
    net.poll_until(lambda: server.is_open and client.is_open)
    return server, client


def hold_frames(net: NetBench, server: Channel, client: Channel) -> None:
    """Mute the server within a frame, so that it finishes this frame, and its transport keeps three frames of 7 bytes that are decrypted."""
    client.send(run_of(frame(50)[:30], 0))
    net.poll_until(lambda: server.staged == 30)
    server.mute(mute.ADMIN)
    client.send(run_of(frame(50)[30:] + frame(7) * 3, 4))
    net.poll_until(lambda: server.frames_received == 1)
