"""A whole framegate between clients with one identity and a broker that sees another: by rule, for those that say nothing, by a file that changes."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from framegate.proxy.auth.client import FIRST_CORRELATION_ID
from tests.fakes.framegate import Framegate, Row
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.sasl_frames import handshake, plain_token, token, versions
from tests.fakes.tap_read import read_frames
from tests.fakes.upstream import ask, peer_name
from tests.fakes.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
PASSWORD, SECRET, TOKEN = "canary-of-alice-3c1", "canary-of-apps-7f3", "canary-token-9d2"


class Rig:
    """Clients of a listener with SASL and of one without, before a broker with SASL."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.folder = folder
        self.broker = undo.enter_context(SaslBroker({"apps": SECRET}, tokens={TOKEN: "guest"}))
        with changing(folder / "users") as users:
            for name in ("alice", "bob"):
                users.add(name, new_credentials(PASSWORD, iterations=4096))
        self.put("password", SECRET)
        self.put("token", TOKEN)
        identities = [
            {"principals": ["RULE:[Aa]lice//"], "mechanism": "SCRAM-SHA-512", "user": "apps", "password_file": "password"},
            {"principals": ["ANONYMOUS"], "mechanism": "OAUTHBEARER", "token_file": "token"},
        ]
        common = {"address": "127.0.0.1:0", "upstream": "brokers", "protocol": "kafka", "max_receive_size": "1MiB"}
        config = {
            "memory_pool": {"size": "16MiB"},
            "listeners": [{"name": "known", **common, "sasl": {"mechanisms": ["PLAIN"], "users": "users"}}, {"name": "open", **common}],
            "upstreams": [{"name": "brokers", "endpoints": [self.broker.address], "sasl": {"identities": identities}}],
            "tap": {"directory": "tap", "rules": [{"name": "all"}]},
        }
        self.proxy = undo.enter_context(Framegate(folder, config))

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)

    def log_in(self, sock: socket.socket, user: str = "alice", error: int = 0) -> None:
        """A client's whole exchange, which framegate answers."""
        for number, request in enumerate((versions(0, 1), handshake("PLAIN", 2), token(plain_token(PASSWORD, user), 3))):
            answer = ask(sock, request)
            assert struct.unpack_from(">i", answer) == (number + 1,)
            assert answer[4:6] == b"\0\0" or number == 2
        assert struct.unpack_from(">h", answer, 5) == (error,)


def principal_of(sock: socket.socket, correlation: int, key: int = 3) -> str:
    """Whom the broker takes a request to be from; it passes untouched."""
    request = struct.pack(">hhih", key, 12, correlation, -1) + b"body"
    answer = ask(sock, request)
    who, _, echoed = answer[4:].partition(b"|")
    assert (answer[:4], echoed) == (struct.pack(">i", correlation), request)
    return who.decode()


def is_let_in(rig: Rig) -> bool:
    """Whether the token is good for the broker."""
    with rig.proxy.connect("open") as client, contextlib.suppress(EOFError, ConnectionError):
        return principal_of(client, 1) == "guest"
    return False


def ended(rig: Rig, listener: str, user: str = "") -> Row:
    """The row of a client that is not let through."""
    with rig.proxy.connect(listener) as client:
        if user:
            rig.log_in(client, user, error=58)
        name = peer_name(client)
        assert client.recv(1) == b""
    return rig.proxy.closed_row(name)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with contextlib.ExitStack() as undo:
        yield Rig(tmp_path_factory.mktemp("sasl"), undo)


def test_a_client_comes_as_one_and_the_broker_sees_another(rig: Rig) -> None:
    with rig.proxy.connect("known") as client:
        rig.log_in(client)
        assert [principal_of(client, number) for number in (7, FIRST_CORRELATION_ID, 8)] == ["apps"] * 3
        name = peer_name(client)
    row = rig.proxy.closed_row(name)
    assert (row["principal"], row["cause"], row["frames"]) == ("alice", "peer_closed", {"request": 3, "response": 3})
    assert row["mechanism"] == "PLAIN", "of the client; ours to the broker is another"


def test_a_client_that_says_nothing_has_its_first_request_passed_on(rig: Rig) -> None:
    with rig.proxy.connect("open") as client:
        assert principal_of(client, 1, key=18) == "guest"
        assert principal_of(client, 2) == "guest"
        name = peer_name(client)
    assert rig.proxy.closed_row(name)["cause"] == "peer_closed"


def test_a_token_that_is_renewed_is_shown_to_the_next_login_and_a_refusal_is_in_words(rig: Rig) -> None:
    rig.put("token", "canary-token-that-has-expired")
    row = ended(rig, "open")
    assert (row["cause"], row["side"]) == ("auth_failed", "upstream")
    assert row["detail"] == f"{rig.broker.address}: OAUTHBEARER: {rig.broker.words}"
    assert "not tried again" in ended(rig, "open")["detail"]
    assert rig.broker.refused == 1
    logins = {"framegate_upstream": "brokers", "framegate_sasl_mechanism": "OAUTHBEARER"}
    assert rig.proxy.metric("framegate_upstream_authentication_count_total", **logins, error_type="credentials") == 1
    with rig.proxy.connect("known") as client:
        rig.log_in(client)
        assert principal_of(client, 1) == "apps", "another login is not held back"
    rig.put("token", TOKEN)
    until(lambda: is_let_in(rig), "it is tried again after a second", 20)
    assert rig.broker.refused == 1


def test_a_secret_that_cannot_be_read_is_our_own_fault(rig: Rig) -> None:
    (rig.folder / "token").rename(rig.folder / "away")
    row = ended(rig, "open")
    (rig.folder / "away").rename(rig.folder / "token")
    assert (row["cause"], row["side"]) == ("auth_failed", "internal")
    assert "cannot be read: No such file or directory" in row["detail"]
    assert rig.proxy.metric("framegate_upstream_authentication_count_total", error_type="unavailable") == 1
    with rig.proxy.connect("open") as client:
        assert principal_of(client, 1) == "guest"


def test_the_tap_has_the_clients_frames_alone_and_no_secret_is_anywhere(rig: Rig) -> None:
    with rig.proxy.connect("known") as client:
        rig.log_in(client)
        assert principal_of(client, 99) == "apps"
        name = peer_name(client)
    rig.proxy.closed_row(name)
    rig.proxy.stop()
    frames = list(read_frames(str(rig.folder / "tap")))
    requests = [struct.unpack_from(">hhi", frame.body) for frame in frames if frame.direction == "request"]
    assert {key for key, _, _ in requests} == {3, 18}
    assert requests[-1] == (3, 12, 99)
    assert not any(frame.size and not frame.body for frame in frames), "nothing had to be withheld"
    logs = json.dumps(rig.proxy.rows) + rig.proxy.errors
    tapped = b"".join(path.read_bytes() for path in (rig.folder / "tap").rglob("*") if path.is_file())
    assert b"body" in tapped
    for canary in (PASSWORD, SECRET, TOKEN, "canary-token-that-has-expired"):
        assert canary not in logs
        assert canary.encode() not in tapped
