"""framegate.control.service.peers: whom a connection is of. Real sockets and certificates: test_sockets."""

import asyncio
import math
import os
import pwd
import socket
import threading
from typing import Any

import pytest

from framegate.control.service import peers as service_peers
from framegate.control.service.peers import NO_ROLE, ROLES, Peer, Peers, role_name, unix_peer
from framegate.control.v1.options_pb2 import Role


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
