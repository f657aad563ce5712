"""Addresses of upstreams on real sockets: good ones, and each kind of fault."""

import contextlib
import datetime
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.doctor import upstreams
from framegate.control.doctor.finding import Finding, look_at_all
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.doctor.upstreams import address_probes
from framegate.proxy.config.sasl import UpstreamSasl
from framegate.proxy.config.tls import UpstreamTls
from tests.fakes.certificates import YEAR, Authority
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.surroundings import config_of, levels
from tests.fakes.upstream import ScriptedUpstream, echo, frame, read_frame, refusing_port, reset

DAY = datetime.timedelta(days=1)
SHORT_S = 0.3
Script = Callable[[socket.socket], None]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.contextmanager
def serving(script: Script = echo) -> Iterator[ScriptedUpstream]:
    made = ScriptedUpstream(script)
    try:
        yield made
    finally:
        made.close()


def encrypted(certificate: tuple[str, str], script: Script = echo, client_ca: str | None = None) -> Script:
    """The script after a TLS handshake as a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)

    def talk(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as inside:
            script(inside)

    return talk


def silent(sock: socket.socket) -> None:
    """Take what comes and never answer."""
    if sock.recv(1 << 16):
        sock.recv(1)


def meet(
    port: int,
    *,
    kafka: bool = False,
    timeout_s: float = 10.0,
    tls: UpstreamTls | None = None,
    host: str = "localhost",
    at: str = "127.0.0.1:0",
    **keys: Any,
) -> list[Finding]:
    """The findings about one address; ``at``: the listener's address."""
    config = config_of(f"localhost:{port}", listener={"address": at, **({"protocol": "kafka"} if kafka else {})}, upstream={"tls": tls, **keys})
    around = Surroundings(config=config, timeout_s=timeout_s)
    return look_at_all(address_probes(around, {"up": [[host, socket.AF_INET, "127.0.0.1", port]]}), timeout_s)


def told(findings: list[Finding], level: str = "fault") -> Finding:
    (found,) = [item for item in findings if item.level == level]
    return found


def test_an_upstream_that_speaks_first_is_good_and_one_that_ends_the_connection_is_a_fault() -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"220 hello\r\n")
        sock.recv(1)

    with serving(greet) as upstream:
        assert meet(upstream.port)[0].found.endswith("stays open, and speaks first")
    with refusing_port() as port:
        assert told(meet(port)).found == "no process listens there"
    with serving(lambda sock: None) as upstream:
        assert "ends the connection at once" in told(meet(upstream.port)).found
    with serving(reset) as upstream:
        assert "Connection reset by peer" in told(meet(upstream.port)).found


def test_a_server_that_accepts_no_connection_is_a_fault_within_the_timeout() -> None:
    """A full queue: the kernel leaves packets unanswered."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        begun = time.monotonic()
        found = told(meet(port, timeout_s=SHORT_S))
        assert time.monotonic() - begun < SHORT_S + 2
    assert found.found == "takes no connection within 0.3 s"


def test_a_broker_gets_one_request_and_no_login() -> None:
    broker = SaslBroker({"me": "secret"})
    found = meet(broker.port, kafka=True, sasl=UpstreamSasl(mechanism="PLAIN", user="me", password_file="/nowhere"))
    broker.close()
    assert levels(found) == ["ok", "unknown"]
    assert "ApiVersions answered in" in found[0].found
    assert set(found[0].figures) == {"connect_ms", "frames_ms", "apis"}
    assert found[0].figures["apis"] == 4
    assert (broker.asked(), broker.logins, broker.refused) == ([18], [], 0)


def test_where_a_broker_sends_clients_is_compared_with_the_listeners() -> None:
    """The listener here is on port 19093; each broker says where its clients find it."""
    sent: list[tuple[str, int]] = []

    def talk(sock: socket.socket) -> None:
        while body := read_frame(sock):
            key, version = struct.unpack_from(">hh", body)
            if key == 18:
                answer = struct.pack(">hi", 0, 2) + struct.pack(">hhhhhh", 18, 0, 4, 3, 0, 13)
            else:
                assert (key, version) == (3, 8)
                brokers = [
                    struct.pack(">ih", node, len(host)) + host.encode() + struct.pack(">ih", port, -1) for node, (host, port) in enumerate(sent)
                ]
                answer = struct.pack(">ii", 0, len(sent)) + b"".join(brokers) + struct.pack(">hii", -1, 0, 0)
            sock.sendall(frame(body[4:8] + answer))

    with serving(talk) as upstream:
        port = upstream.port
        for brokers, level, words in (
            ([("edge", 19093)], "ok", "Metadata names 1 broker, by ports of listeners here: edge:19093"),
            ([("broker-1", 9092)], "warning", "Metadata sends clients to broker-1:9092, which is no listener here: they walk past framegate"),
            ([("127.0.0.1", port)], "warning", f"Metadata sends clients to 127.0.0.1:{port}, which"),
            ([("edge", 19093), ("edge", 19093)], "warning", "one address for several brokers"),
        ):
            sent[:] = brokers
            found = meet(port, kafka=True, at="127.0.0.1:19093")[1]
            assert (found.level, found.subject) == (level, f"up, 127.0.0.1:{port}, where clients are sent")
            assert words in found.found
            assert found.figures["brokers"] == len(brokers)


NO_KAFKA: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda body: frame(body), "no answer to ApiVersions: correlation id"),
    (lambda body: frame(body[4:8] + struct.pack(">hi", 35, 0)), "ApiVersions is answered with error 35"),
    (lambda body: frame(body[4:8] + b"\0\0"), "no answer to ApiVersions"),
    (lambda body: b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers ApiVersions with b'HTTP', which is no frame of Kafka's"),
    (lambda body: b"\x15\x03\x01\x00\x02\x02\x46", "with a TLS alert: it speaks TLS on this port"),
    (lambda body: b"\0\0", "ends the connection instead of answering"),
    (lambda body: b"", "ends the connection instead of answering"),
]


def test_an_upstream_that_does_not_speak_kafka_is_a_fault() -> None:
    wrong = []
    for answer, words in NO_KAFKA:
        with serving(lambda sock, answer=answer: sock.sendall(answer(read_frame(sock)))) as upstream:
            found = told(meet(upstream.port, kafka=True)).found
        wrong += [(words, found)] * (words not in found)
    assert wrong == []


def test_a_server_that_answers_byte_by_byte_gets_no_longer_time() -> None:
    stop = threading.Event()

    def drip(sock: socket.socket) -> None:
        sock.sendall(struct.pack(">i", 1000))
        while not stop.wait(0.05):
            sock.sendall(b"x")

    with serving(drip) as upstream:
        assert told(meet(upstream.port, kafka=True, timeout_s=SHORT_S)).found.endswith("no answer to ApiVersions within 0.3 s")
        stop.set()


def test_tls_is_shown_with_protocol_cipher_days_and_times(authority: Authority) -> None:
    with serving(encrypted(authority.leaf("server"))) as upstream:
        (found,) = meet(upstream.port, tls=UpstreamTls(ca=str(authority.path)))
    assert found.level == "ok"
    assert "TLSv1.3 with TLS_" in found.found
    assert "certificate ends in 365 days" in found.found
    assert set(found.figures) == {"connect_ms", "tls_ms", "tls_version", "cipher"}


def test_a_broker_behind_tls_that_asks_for_our_certificate_gets_it(authority: Authority) -> None:
    certificate, key = authority.leaf("client")
    talk = SaslBroker()._talk
    with serving(encrypted(authority.leaf("server"), talk, str(authority.path))) as upstream:
        good = meet(upstream.port, kafka=True, tls=UpstreamTls(ca=str(authority.path), certificate=certificate, key=key))
        bad = told(meet(upstream.port, kafka=True, tls=UpstreamTls(ca=str(authority.path))))
    assert levels(good) == ["ok", "unknown"], "its clients log in before they ask for Metadata"
    assert "certificate required" in bad.found
    assert "tls.certificate and tls.key" in bad.advice


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"lifetime": (-YEAR, -DAY)}, {}, "certificate has expired (it is CN=server,O=Test, for DNS:localhost, IP:127.0.0.1, made by", "renew"),
    ({"hosts": ("other.example.org",)}, {}, "certificate is not valid for 'localhost'", "tls.server_name"),
    ({}, {"server_name": "broker.example.org"}, "certificate is not valid for 'broker.example.org'", "tls.server_name"),
    ({}, {"ca": None}, "unable to get local issuer certificate", "tls.ca"),
]


def test_a_refused_certificate_is_shown_with_what_is_in_it(authority: Authority) -> None:
    wrong = []
    for leaf, tls, words, advice in REFUSED:
        with serving(encrypted(authority.leaf("server", **leaf))) as upstream:
            found = told(meet(upstream.port, tls=UpstreamTls(**{"ca": str(authority.path), **tls})))
        wrong += [found] * (words not in found.found or advice not in found.advice)
    assert wrong == []


def test_a_certificate_that_begins_in_the_future_is_also_a_warning_about_the_clock(authority: Authority) -> None:
    with serving(encrypted(authority.leaf("server", lifetime=(DAY / 8, YEAR)))) as upstream:
        found = meet(upstream.port, tls=UpstreamTls(ca=str(authority.path)))
    assert "certificate is not yet valid" in told(found).found
    clock = told(found, "warning")
    assert (clock.area, "begins in 3.0 hours" in clock.found) == ("clock", True)
    assert clock.figures["behind_s"] == pytest.approx(10_800, abs=5)


def test_a_certificate_that_ends_soon_is_a_warning_and_a_key_that_is_not_pinned_a_fault(authority: Authority) -> None:
    with serving(encrypted(authority.leaf("server", lifetime=(-YEAR, 3 * DAY)))) as upstream:
        found = meet(upstream.port, tls=UpstreamTls(ca=str(authority.path)))
        unpinned = meet(upstream.port, tls=UpstreamTls(ca=str(authority.path), pins=("sha256/" + "A" * 43 + "=",)))
    assert (levels(found), told(found, "warning").found) == (["ok", "warning"], "its certificate ends in 3 days")
    assert "which is none of pins" in told(unpinned).found


def test_an_upstream_without_tls_is_a_fault_and_a_silent_one_costs_its_time(authority: Authority) -> None:
    with serving(lambda sock: sock.sendall(b"220 hello, this is no TLS\r\n" * 10)) as upstream:
        found = told(meet(upstream.port, tls=UpstreamTls(ca=str(authority.path))))
    assert "it does not speak TLS on this port" in found.advice
    with serving(silent) as upstream:
        begun = time.monotonic()
        found = told(meet(upstream.port, timeout_s=SHORT_S, tls=UpstreamTls(ca=str(authority.path))))
        assert time.monotonic() - begun < SHORT_S + 2
    assert "no TLS handshake within 0.3 s" in found.found


def test_all_addresses_are_tried_at_once_and_a_slow_one_delays_no_other() -> None:
    """In sequence they would take the sum of their times."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(serving(silent)).port for _ in range(10)]
        config = config_of(listener={"protocol": "kafka"})
        around = Surroundings(config=config, timeout_s=SHORT_S)
        rows = [["", socket.AF_INET, "127.0.0.1", port] for port in ports]
        begun = time.monotonic()
        found = look_at_all(address_probes(around, {"up": rows}), SHORT_S)
        assert time.monotonic() - begun < 9 * SHORT_S
    assert levels(found) == ["fault"] * 10


def test_addresses_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "MOST", 2)
    rows = [["", socket.AF_INET, f"127.0.0.{number}", 1] for number in range(1, 6)]
    probes = address_probes(Surroundings(config=config_of()), {"up": rows})
    found = look_at_all(probes, 10)
    assert levels(found) == ["fault", "fault", "unknown"]
    assert found[2].found == "3 more not met"


def test_an_upstream_without_an_address_is_a_fault_and_no_configuration_is_not_known() -> None:
    around = Surroundings(config=config_of("nowhere:1"))
    assert levels(look_at_all(address_probes(around, {"up": []}), 10)) == ["fault"]
    assert levels(look_at_all(address_probes(Surroundings(), {}), 10)) == ["unknown"]


def test_no_finding_has_our_key(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.leaf("client")
    secret = Path(key).read_text().splitlines()[1]
    with serving(encrypted(authority.leaf("server", lifetime=(-YEAR, -DAY)))) as upstream:
        found = meet(upstream.port, tls=UpstreamTls(ca=str(authority.path), certificate=certificate, key=key))
    assert levels(found) == ["fault"]
    assert secret not in str(found)
