"""TLS as OpenSSL's own tools speak it, on both sides of a whole framegate: who comes in, who does not, and what each side is told."""

import contextlib
import dataclasses
import datetime
import socketserver
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row, config_before
from tests.fakes.openssl import HAS_OPENSSL, Said, s_client, s_server
from tests.fakes.tap_read import read_frames
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_OPENSSL, reason="needs the openssl command")]

DAY = datetime.timedelta(days=1)
HELLO = frame(b"hello")
ECHO = ((HELLO, HELLO),)
VERSIONS = ("1.2", "1.3")
CIPHERS = {
    "1.2": ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    "1.3": ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
}


@dataclasses.dataclass(frozen=True)
class World:
    """A framegate with a listener of each kind, and who may want to come in."""

    proxy: Framegate
    authority: str
    server: tuple[str, str]
    clients: dict[str, tuple[str, str]]

    def ask(
        self, listener: str, version: str, client: str = "missing", *options: str, host: str = "localhost", quiet: bool = True, steps: Any = ECHO
    ) -> tuple[Said, Row]:
        """One frame there and back, or what is said instead; and the row of the connection."""
        shown = [] if client == "missing" else self.shown(client)
        fixed = ["-CAfile", self.authority, "-verify_return_error", "-servername", host, f"-tls{version.replace('.', '_')}"]
        before = len(self.closed(listener))
        said = s_client(self.proxy.address(listener), *fixed, *shown, *options, steps=steps, quiet=quiet)
        return said, self.proxy.wait_row(lambda row: row in self.closed(listener)[before:])

    def shown(self, client: str) -> list[str]:
        certificate, key = self.clients[client]
        return ["-cert", certificate, "-key", key]

    def closed(self, listener: str) -> list[Row]:
        return [row for row in self.proxy.events("closed") if row["listener"] == listener]

    def refused(self, listener: str, version: str, client: str = "missing", *options: str) -> tuple[str, Row]:
        """The alert that the client is told, and the row; no reset came before it."""
        said, row = self.ask(listener, version, client, *options)
        assert HELLO not in said.data
        assert "errno=104" not in said.errors
        return said.alert, row

    def served(self, listener: str, version: str, client: str = "missing", *options: str) -> Row:
        said, row = self.ask(listener, version, client, *options)
        assert HELLO in said.data, said.errors
        return row


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("peers")
    authority, other = Authority(folder), Authority(folder, "other authority")
    server, named = authority.leaf("server"), authority.leaf("named", hosts=("named.example.org",))
    clients = {
        "good": authority.leaf("client", uris=("spiffe://td/ns/prod/sa/client",)),
        "second": authority.leaf("second", uris=("spiffe://td/ns/test/sa/second",)),
        "stranger": other.leaf("stranger"),
        "expired": authority.leaf("expired", lifetime=(-9 * DAY, -DAY)),
        "early": authority.leaf("early", lifetime=(DAY, 9 * DAY)),
        "revoked": authority.leaf("revoked"),
    }
    identity = {"certificate": server[0], "key": server[1]}
    asked = {"client_ca": str(authority.path), "crl": [authority.revocations(clients["revoked"][0])]}
    spiffe = {"from": "uri", "rules": [r"RULE:spiffe:\/\/td\/ns\/(.*)\/sa\/(.*)/$2@$1/U", "DEFAULT"]}
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "requested": {**asked, "client_auth": "requested"},
        "required": {**asked, "client_auth": "required"},
        "only12": {"max_version": "1.2", "ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"},
        "only13": {"min_version": "1.3"},
        "alpn": {"alpn": ["kafka", "other"]},
        "curve": {"curve": "secp384r1"},
        "hosts": {
            "client_auth": "required",
            "client_ca": str(authority.path),
            "certificates": [
                {"names": ["named.example.org"], "certificate": named[0], "key": named[1], "client_ca": str(other.path)},
                {"names": ["*.below.example.org"], "certificate": named[0], "key": named[1]},
            ],
        },
        "ended": {"client_auth": "required", "client_ca": str(authority.path), "crl": [authority.revocations(ends=-DAY)]},
    }
    listeners = [{"name": name, "address": "127.0.0.1:0", "upstream": "echo", "tls": {**identity, **tls}} for name, tls in kinds.items()]
    listeners.append(
        {
            "name": "allowed",
            "address": "127.0.0.1:0",
            "upstream": "echo",
            "tls": {**identity, **asked, "client_auth": "requested"},
            "principal": spiffe,
            "allowed_principals": ["RULE:.*@PROD"],
        }
    )
    for listener in listeners:
        listener["max_receive_size"] = "1MiB"
    with ScriptedUpstream() as upstream, Framegate(folder / "proxy", {**config_before(upstream.address), "listeners": listeners}) as proxy:
        yield World(proxy, str(authority.path), server, clients)


# What is agreed.


@pytest.mark.parametrize(("version", "cipher"), [(version, cipher) for version in VERSIONS for cipher in CIPHERS[version]])
def test_each_cipher_of_each_version(world: World, version: str, cipher: str) -> None:
    row = world.served("none", version, "missing", "-ciphersuites" if version == "1.3" else "-cipher", cipher)
    assert {**row["tls"], "certificate": ""} == {"version": f"TLSv{version}", "cipher": cipher, "certificate": ""}


@pytest.mark.parametrize(
    ("listener", "version", "options", "alert", "words"),
    [
        ("only13", "1.2", (), "protocol version", "offers no version of TLS that is allowed here"),
        ("only12", "1.3", (), "protocol version", "offers no version of TLS that is allowed here"),
        ("only12", "1.2", ("-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"), "handshake failure", "offers no cipher that is allowed here"),
        ("curve", "1.3", ("-groups", "P-256"), "handshake failure", "offers no key exchange that is allowed here"),
        ("alpn", "1.2", ("-alpn", "h2"), "no application protocol", "asks for 'h2' (ALPN), and kafka, other is spoken"),
        ("alpn", "1.3", ("-alpn", "h2"), "no application protocol", "asks for 'h2' (ALPN), and kafka, other is spoken"),
    ],
)
def test_what_does_not_meet_is_told_to_both(world: World, listener: str, version: str, options: tuple[str, ...], alert: str, words: str) -> None:
    told, row = world.refused(listener, version, "missing", *options)
    assert told == alert
    assert (row["cause"], row["side"], row["state"]) == ("tls_failed", "downstream", "handshaking")
    assert words in row["detail"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("asked", "agreed"), [("other,h2,kafka", b"ALPN protocol: kafka"), ("", b"No ALPN negotiated")])
def test_the_best_protocol_of_ours_is_agreed_and_who_asks_for_none_passes(world: World, version: str, asked: str, agreed: bytes) -> None:
    said, _ = world.ask("alpn", version, "missing", *(["-alpn", asked] if asked else []), quiet=False)
    assert agreed in said.data
    assert HELLO in said.data


# Who comes in.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("missing", None),
        ("good", None),
        ("stranger", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
        ("early", "certificate is not yet valid"),
        ("revoked", "certificate revoked"),
    ],
)
@pytest.mark.parametrize("listener", ["none", "requested", "required"])
def test_each_client_certificate_under_each_client_auth(world: World, listener: str, client: str, words: str | None, version: str) -> None:
    if listener == "required" and client == "missing":
        words = "the client shows no certificate, and one is required"
    if listener == "none" or words is None:
        row = world.served(listener, version, client)
        assert row["principal"] == ("CN=client,O=Test" if client == "good" and listener != "none" else "ANONYMOUS")
        return
    alert, row = world.refused(listener, version, client)
    alerts = {
        "missing": "certificate required" if version == "1.3" else "handshake failure",
        "stranger": "unknown ca",
        "expired": "certificate expired",
        "early": "bad certificate",
        "revoked": "certificate revoked",
    }
    assert alert == alerts[client]
    assert (row["cause"], row["side"], row["state"]) == ("tls_failed", "downstream", "handshaking")
    assert words in row["detail"]


def test_a_revocation_list_that_has_ended_refuses_everybody(world: World) -> None:
    alert, row = world.refused("ended", "1.3", "good")
    assert alert
    assert "the client's certificate is refused: CRL has expired" in row["detail"]


@pytest.mark.parametrize("version", VERSIONS)
def test_principals_are_mapped_and_only_those_who_may_come_in(world: World, version: str) -> None:
    row = world.served("allowed", version, "good")
    assert row["principal"] == "CLIENT@PROD"
    for client, principal in (("second", "SECOND@TEST"), ("missing", "ANONYMOUS")):
        _, row = world.refused("allowed", version, client)
        assert (row["cause"], row["side"]) == ("auth_failed", "downstream")
        assert row["detail"] == f"the principal {principal!r} is none of allowed_principals"
    assert "CLIENT" not in str(world.proxy.metrics())


@pytest.mark.extended
def test_the_same_principal_in_rows_in_the_api_and_in_the_tap(world: World, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    tls = {"certificate": world.server[0], "key": world.server[1], "client_auth": "required", "client_ca": world.authority}
    principal = {"rules": ["RULE:^CN=(.*),O=Test$/$1 of Test/U"]}
    tap = {"directory": "tap", "rules": [{"name": "mine", "principals": ["CLIENT OF TEST"]}]}
    config = {**config_before(upstream.address, tls=tls, principal=principal), "tap": tap}
    context = ssl.create_default_context(cafile=world.authority)
    context.load_cert_chain(*world.clients["good"])
    with Framegate(tmp_path / "proxy", config) as proxy:
        with proxy.connect("plain", context) as client:
            client.sendall(HELLO)
            assert read_frame(client) == b"hello"
            listed = proxy.cli("channels", "list", "--output", "json")
        row = proxy.wait_row(lambda row: row["event"] == "closed")
        metrics = str(proxy.metrics())
    assert row["principal"] == "CLIENT OF TEST"
    assert '"CLIENT OF TEST"' in listed.stdout
    assert {item.principal for item in read_frames(str(tmp_path / "proxy" / "tap"))} == {"CLIENT OF TEST"}
    assert "OF TEST" not in metrics


# Hosts.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("host", "subject"), [("named.example.org", b"CN = named"), ("x.below.example.org", b"CN = named"), ("below.example.org", b"CN = server")]
)
def test_the_host_that_is_asked_for_decides_which_certificate_is_met(world: World, version: str, host: str, subject: bytes) -> None:
    client = "stranger" if host == "named.example.org" else "good"
    said, _ = world.ask("hosts", version, client, host=host, quiet=False)
    assert b"subject=O = Test, " + subject in said.data
    assert HELLO in said.data


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_is_resumed_under_its_own_host_and_under_no_other(world: World, version: str, tmp_path: Path) -> None:
    """Resumption asks for no certificate: under another host, whose authorities do not vouch for the client, it would be a way in."""
    session = str(tmp_path / "session")
    first, _ = world.ask("hosts", version, "good", "-sess_out", session, quiet=False)
    assert HELLO in first.data
    again, _ = world.ask("hosts", version, "good", "-sess_in", session, quiet=False)
    assert b"Reused, TLSv" in again.data
    assert HELLO in again.data
    for shown, words in (([], "shows no certificate"), (world.shown("good"), "certificate is refused")):
        other, row = world.ask("hosts", version, "missing", "-sess_in", session, *shown, host="named.example.org", quiet=False)
        assert b"Reused, TLSv" not in other.data
        assert HELLO not in other.data
        assert row["cause"] == "tls_failed"
        assert words in row["detail"]


# What comes in between.


def test_a_renegotiation_is_refused(world: World) -> None:
    said, row = world.ask("none", "1.2", "missing", quiet=False, steps=((HELLO, HELLO), (b"R\n", b"no renegotiation")))
    assert b"no renegotiation" in said.data
    assert (row["cause"], row["state"], row["frames"]) == ("tls_failed", "open", {"request": 1, "response": 1})


@pytest.mark.parametrize("command", [b"K\n", b"k\n"])
def test_new_keys_in_mid_stream_lose_no_frame(world: World, command: bytes) -> None:
    numbered = [frame(b"number %d" % number) for number in range(4)]
    steps = tuple(step for data in numbered for step in ((data, data), (command, b"KEYUPDATE")))
    said, _ = world.ask("none", "1.3", "missing", quiet=False, steps=steps)
    places = [said.data.find(data) for data in numbered]
    assert sorted(places) == places
    assert -1 not in places


@pytest.mark.parametrize(
    ("data", "cause", "words"),
    [
        (HELLO, "tls_failed", "not TLS: the first bytes of the client are 00 00 00 05"),
        (b"GET / HTTP/1.1\r\n\r\n", "tls_failed", "not TLS: the first bytes of the client are 47 45 54 20"),
        (b"\x16\x03\x01\x00\x05hello", "tls_failed", "TLS failed"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "tls_failed", "TLS failed"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "tls_failed", "the client sends a TLS message out of turn"),
    ],
)
@pytest.mark.parametrize("listener", ["none", "hosts"])
def test_garbage_is_named(world: World, listener: str, data: bytes, cause: str, words: str) -> None:
    with world.proxy.connect(listener) as client:
        client.sendall(data)
        row = world.proxy.closed_row(client)
    assert (row["cause"], row["side"], row["state"]) == (cause, "downstream", "handshaking")
    assert words in row["detail"]


# Towards an upstream.


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers the first bytes of each connection with these: its address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if self.request.recv(1):
                self.request.sendall(answer)
                self.request.recv(1 << 16)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address[:2])
        finally:
            server.shutdown()
            thread.join()


REFUSALS: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    "no-certificate-12": (("-tls1_2", "-Verify", "1"), {}, "tls_failed", "the upstream finds no cipher, key exchange or certificate that it can use"),
    "no-certificate-13": (
        ("-tls1_3", "-Verify", "1"),
        {},
        "tls_failed",
        "the upstream requires a certificate, and we show none; it looked at what we showed behind the handshake",
    ),
    "other-name": ((), {"server_name": "elsewhere"}, "tls_failed", "the upstream's certificate is refused: Hostname mismatch"),
    "other-authority": ((), {"ca": None}, "tls_failed", "the upstream's certificate is refused: unable to get local issuer certificate"),
    "other-version": (("-tls1_2",), {"min_version": "1.3"}, "tls_failed", "the upstream refuses the versions of TLS that are allowed here"),
    "other-key": ((), {"pins": ["sha256/" + "A" * 43 + "="]}, "auth_failed", "the certificate 'CN=server,O=Test' has the key sha256/"),
}


@dataclasses.dataclass(frozen=True)
class Behind:
    """A framegate with a listener for each upstream, and the upstreams that want our certificate, by listener."""

    proxy: Framegate
    servers: dict[str, Any]


@pytest.fixture(scope="module")
def behind(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    good = world.clients["good"]
    with contextlib.ExitStack() as stack:
        upstreams: dict[str, tuple[str, dict[str, Any] | None]] = {}
        for name, (options, tls, _, _) in REFUSALS.items():
            server = stack.enter_context(s_server(world.server, *options))
            settings = {key: value for key, value in ({"ca": world.authority, "server_name": "localhost"} | tls).items() if value is not None}
            upstreams[name] = server.address, settings
        shown = {"ca": world.authority, "server_name": "localhost", "certificate": good[0], "key": good[1]}
        asks = ("-Verify", "1", "-verify_return_error", "-CAfile", world.authority)
        servers = {f"tls{version[-1]}": stack.enter_context(s_server(world.server, *asks, f"-tls1_{version[-1]}")) for version in VERSIONS}
        upstreams |= {name: (server.address, shown) for name, server in servers.items()}
        upstreams["http"] = stack.enter_context(answering(b"HTTP/1.1 400 Bad Request\r\n")), {"ca": world.authority}
        upstreams["alert"] = stack.enter_context(answering(b"\x15\x03\x03\x00\x02\x02\x0a")), None
        config = {
            "memory_pool": {"size": "8MiB"},
            "listeners": [{"name": name, "address": "127.0.0.1:0", "upstream": name, "max_receive_size": "1MiB"} for name in upstreams],
            "upstreams": [{"name": name, "endpoints": [at], **({"tls": tls} if tls else {})} for name, (at, tls) in upstreams.items()],
        }
        yield Behind(stack.enter_context(Framegate(tmp_path_factory.mktemp("behind"), config)), servers)


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_towards_an_upstream_that_wants_our_certificate(behind: Behind, version: str) -> None:
    name = f"tls{version[-1]}"
    server = behind.servers[name]
    with behind.proxy.connect(name) as client:
        client.sendall(HELLO)
        assert b"CN = client" in server.receive(HELLO)
        server.send(frame(b"answer\n"))
        assert read_frame(client) == b"answer\n"


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        *((name, cause, words) for name, (_, _, cause, words) in REFUSALS.items()),
        ("http", "tls_failed", "not TLS: the first bytes of the upstream are 48 54 54 50"),
        ("alert", "wrong_protocol", "the first bytes are TLS"),
    ],
)
def test_an_upstream_that_is_refused_or_refuses_us(behind: Behind, name: str, cause: str, words: str) -> None:
    with behind.proxy.connect(name) as client:
        client.sendall(HELLO)
        while client.recv(100):
            pass
        row = behind.proxy.closed_row(client)
    assert (row["cause"], row["side"]) == (cause, "upstream")
    assert words in row["detail"]
