"""framegate.control.service.peers: whom a connection is of. Real sockets and certificates: test_sockets."""

import asyncio
import hashlib
import math
import os
import pwd
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from framegate.control.service import peers as service_peers
from framegate.control.service.certificate_peers import CertificatePeers
from framegate.control.service.peers import NO_ROLE, ROLES, Peer, Peers, role_name, unix_peer
from framegate.control.v1.options_pb2 import Role
from framegate.proxy.config.model import AdminTcp
from framegate.proxy.config.tls import PrincipalConfig
from tests.fakes.certificates import Authority


def test_the_roles_are_those_of_the_api() -> None:
    assert {role_name(number): number for number in (*ROLES.values(), NO_ROLE)} == {
        name.removeprefix("ROLE_").lower(): number for name, number in reversed(Role.items())
    }


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
    assert (peer.local, peer.ends_s) == (True, math.inf)


def test_a_directory_service_that_does_not_answer_delays_one_connection_a_moment_and_the_user_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(uid: int) -> Any:
        gate.wait(10)
        raise KeyError(uid)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            found = [(await unix_peer(Role.ROLE_VIEW, ours, None)).fields["who"] for _ in range(3)]  # type: ignore[arg-type]
            assert found == [f"uid:{os.geteuid()}"] * 3
            assert len([thread for thread in threading.enumerate() if thread.name == "framegate-work"]) == 1, "it is asked once"
            gate.set()
            while service_peers._asked:
                await asyncio.sleep(0.001)

    monkeypatch.setattr(pwd, "getpwuid", slow)
    monkeypatch.setattr(service_peers, "_NAME_S", 0.01)
    monkeypatch.setattr(service_peers, "_names", {})
    asyncio.run(main())


def test_nothing_is_read_from_a_connection_while_one_of_its_refusals_waits() -> None:
    holds: list[bool] = []
    peers = Peers()
    name = peers.add(Peer(Role.ROLE_VIEW, {}), holds.append)
    with peers.held(f"unix-abstract:{name}"), peers.held("unix:"):
        with peers.held(f"unix-abstract:{name}"):
            pass
        assert holds == [True, True, True]
    assert holds[-1] is False


class Tls:
    """A connection with a client's certificate, whose session was resumed: nothing was verified again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sslobj = self

    def get_verified_chain(self) -> list[Any]:
        return []

    def getpeercert(self, binary_form: bool = False) -> Any:
        return ssl.PEM_cert_to_DER_cert(Path(self.path).read_text()) if binary_form else ssl._ssl._test_decode_cert(self.path)  # type: ignore[attr-defined]


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
        peer = CertificatePeers(config).peer(Tls(authority.leaf("ada")[0]), "10.0.0.1:5")  # type: ignore[arg-type]
        assert (peer.fields["who"], peer.role) == expected
        assert (len(peer.fields["certificate"]), peer.fields["address"], peer.local) == (64, "10.0.0.1:5", False)
        assert time.time() < peer.ends_s < math.inf
        assert [hashlib.sha256(item).hexdigest() for item in peer.chain] == [peer.fields["certificate"]]
