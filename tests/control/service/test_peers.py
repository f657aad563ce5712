"""framegate.control.service.peers: whom a connection is of. Real sockets and certificates: test_sockets."""

import asyncio
import os
import socket
import ssl
from pathlib import Path

from framegate.control.service.peers import CertificatePeers, Peer, Peers, role_name, unix_peer
from framegate.control.v1.options_pb2 import Role
from framegate.proxy.config.model import AdminTcp
from framegate.proxy.config.tls import PrincipalConfig
from tests.fakes.certificates import Authority


def test_a_caller_is_known_by_a_name_that_nobody_guesses_until_its_connection_ends() -> None:
    peers, peer = Peers(), Peer(Role.ROLE_VIEW, {"who": "ada"})
    first, second = peers.add(peer), peers.add(peer)
    assert first != second
    assert len(first) == 32
    assert (peers.find(f"unix-abstract:{first}"), peers.find("unix:"), peers.find("ipv4:127.0.0.1:1")) == (peer, None, None)
    peers.remove(first)
    assert (peers.find(f"unix-abstract:{first}"), peers.find(f"unix-abstract:{second}")) == (None, peer)


def test_the_kernel_says_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = asyncio.run(unix_peer(Role.ROLE_OPERATE, ours, None))  # type: ignore[arg-type]
    assert (peer.role, peer.fields["uid"], peer.fields["gid"], peer.fields["pid"]) == (Role.ROLE_OPERATE, os.geteuid(), os.getegid(), os.getpid())
    assert role_name(peer.role) == "operate"


def test_a_principal_has_the_highest_role_whose_list_has_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for names, rules, expected in (
        ({"view": ("RULE:.*",), "operate": ("CN=ada,O=Test",)}, ("DEFAULT",), ("CN=ada,O=Test", Role.ROLE_OPERATE)),
        ({"view": ("ada",), "admin": ("ada",)}, ("RULE:CN=(.*),O=.*/$1/",), ("ada", Role.ROLE_ADMIN)),
        ({"view": ("bob",)}, ("RULE:CN=(.*),O=.*/$1/",), ("ada", Role.ROLE_UNSPECIFIED)),
        ({"view": ("RULE:.*",)}, ("RULE:CN=bob/$0/",), ("CN=ada,O=Test", Role.ROLE_UNSPECIFIED)),
    ):
        files = dict.fromkeys(("certificate", "key", "client_ca"), "unread")
        config = AdminTcp(address="127.0.0.1:0", **files, principal=PrincipalConfig(rules=rules), **names)
        peer = CertificatePeers(config).peer(ssl.PEM_cert_to_DER_cert(Path(authority.leaf("ada")[0]).read_text()), "10.0.0.1:5")
        assert (peer.fields["who"], peer.role) == expected
        assert (len(peer.fields["certificate"]), peer.fields["address"]) == (64, "10.0.0.1:5")
