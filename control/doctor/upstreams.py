"""Each address of each upstream: whether it takes a connection, whether TLS succeeds, whether it answers, and how long each takes.

Nothing is changed there. With ``protocol: kafka`` the probe sends ApiVersions, which brokers answer before a login, and, if no login is configured,
Metadata, which says where clients are sent (``advertised``). To others nothing is sent; they only have to keep the connection. There is no login.
"""

import contextlib
import dataclasses
import functools
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from cryptography import x509

from framegate.control.accept.api_versions import question, ranges_in
from framegate.control.accept.broker_connection import MAX_ANSWER, own_header
from framegate.control.accept.broker_list import Broker, brokers_in, metadata_question
from framegate.control.accept.resolver import text_of
from framegate.control.configuration.tls_files import CertificateFacts, facts_of
from framegate.control.doctor import advertised
from framegate.control.doctor.certificates import DAY_S, days, ends_soon, weakness
from framegate.control.doctor.finding import Deadline, Figure, Finding, Probe, judged, unknown
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.auth.certificates import key_pin
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.config.model import UpstreamConfig
from framegate.proxy.config.tls import UpstreamTls
from framegate.proxy.errors import ProxyError
from framegate.proxy.network.tls_context import upstream_context

MOST: Final = 256  # Addresses that are tried; all at once, each on a thread
STAYS_S: Final = 0.3  # a server that ends each new connection does so within this time
_TLS_ALERT: Final = b"\x15\x03"
_NOT_YET_VALID: Final = 9
_ADVICE: Final[Mapping[int, str]] = {
    _NOT_YET_VALID: "look at this machine's clock, and at its: the certificate begins in the future",
    10: "renew its certificate; until then no TLS connection to it is made",
    18: "name its certificate, or its authority's, in tls.ca",
    19: "name the root that its chain ends at in tls.ca",
    20: "name its authority in tls.ca; if it is named, the upstream sends no intermediate certificates: have it send its whole chain",
    21: "have it send its whole chain, or name its authority in tls.ca",
    62: "set tls.server_name to a name that its certificate has, or connect to it by one",
    64: "set tls.server_name to a name that its certificate has: it has not this address",
}  # by OpenSSL's X509_V_ERR numbers


class _StageError(Exception):
    """Where a probe ended: what was found, and what to do."""

    def __init__(self, words: str, advice: str) -> None:
        super().__init__(words)
        self.words = words
        self.advice = advice


@dataclasses.dataclass
class _Attempt:
    """The state of the probe of one address."""

    around: Surroundings
    upstream: UpstreamConfig
    kafka: bool
    wire: list[Any]
    deadline: Deadline
    figures: dict[str, Figure] = dataclasses.field(default_factory=dict)
    steps: list[str] = dataclasses.field(default_factory=list)
    peer: CertificateFacts | None = None
    brokers: list[Broker] | None = None
    unasked: str = ""
    weak: str | None = None

    @property
    def text(self) -> str:
        return text_of(self.wire)

    @property
    def name(self) -> str:
        """The name that the certificate must have."""
        return (self.upstream.tls.server_name if self.upstream.tls else None) or self.wire[0].rstrip(".") or "localhost"


def address_probes(around: Surroundings, addresses: Mapping[str, list[list[Any]]]) -> list[Probe]:
    """One probe for each of these addresses, by upstream, ``MOST`` at most."""
    config = around.config
    if config is None:
        return [_known(unknown("upstreams", "all", "none was met, for there is no valid configuration"))]
    upstreams = [item for item in config.upstreams if item.name in addresses]
    kafka = {item.upstream for item in config.listeners if item.protocol == "kafka"}
    pairs = [(item, wire) for item in upstreams for wire in addresses[item.name]]
    probes = [
        Probe("upstreams", f"{item.name}, {wire[2]}", functools.partial(_look, around, item, wire, addresses[item.name], item.name in kafka))
        for item, wire in pairs[:MOST]
    ]
    if len(pairs) > MOST:
        probes.append(_known(unknown("upstreams", "others", f"{len(pairs) - MOST} more not met")))
    advice = "see what is said of its names, or write addresses in endpoints"
    unreached = [item for item in upstreams if not addresses[item.name]]
    probes += [_known(judged("upstreams", item.name, "no endpoint has an address", fault=advice)) for item in unreached]
    words = "is not tried: it would count as one there, and a wrong password could lock the user out"
    advice = "framegate status, and the closed rows, tell how logins end (auth_failed)"
    logins = [item for item in upstreams if item.sasl is not None]
    return probes + [_known(unknown("upstreams", f"{item.name}, login", words, advice)) for item in logins]


def _known(finding: Finding) -> Probe:
    return Probe("upstreams", finding.subject, lambda: [finding])


def _look(around: Surroundings, upstream: UpstreamConfig, wire: list[Any], wires: list[list[Any]], kafka: bool) -> Iterator[Finding]:
    attempt = _Attempt(around, upstream, kafka, wire, Deadline(around.timeout_s))
    subject = f"{upstream.name}, {attempt.text}"
    try:
        with contextlib.ExitStack() as stack:
            sock = _connected(attempt)
            stack.callback(sock.close)
            if upstream.tls is not None:
                sock = _encrypted(attempt, sock, upstream.tls)
                stack.callback(sock.close)
            (_answered if kafka else _stays)(attempt, sock)
    except _StageError as error:
        words = "; ".join([*attempt.steps, error.words])
        yield judged("upstreams", subject, words, attempt.figures, fault=error.advice)
    else:
        yield judged("upstreams", subject, "; ".join(attempt.steps), attempt.figures)
        if kafka:
            yield from _advertised(attempt, subject, wires)
    yield from _certificate(attempt, subject)


def _advertised(attempt: _Attempt, subject: str, wires: list[list[Any]]) -> Iterator[Finding]:
    config = attempt.around.config
    if attempt.brokers is not None and config is not None:
        yield advertised.finding(subject, config, attempt.upstream, wires, attempt.brokers)
    elif attempt.unasked:
        yield unknown("upstreams", f"{subject}, where clients are sent", attempt.unasked)


def _certificate(attempt: _Attempt, subject: str) -> Iterator[Finding]:
    """Findings about the peer's certificate beside whether TLS accepts it now."""
    peer, now = attempt.peer, attempt.around.now()
    if peer is None:
        return
    if peer.begins > now:
        words = f"the certificate of {subject} begins in {(peer.begins - now) / 3600:.1f} hours: this clock is behind, or its maker's ahead"
        yield judged("clock", "certificates of upstreams", words, {"behind_s": round(peer.begins - now)}, warning=_ADVICE[_NOT_YET_VALID])
    elif peer.ends > now and ends_soon(peer.begins, peer.ends, now):
        figures = {"certificate_days": round((peer.ends - now) / DAY_S, 2)}
        yield judged("upstreams", subject, f"its certificate {days(peer.ends, now)}", figures, warning="have it renewed by who runs the upstream")
    if attempt.weak is not None:
        yield judged("upstreams", subject, f"its certificate is weak: {attempt.weak}", warning="have it made anew by who runs the upstream")


@contextlib.contextmanager
def _timed(attempt: _Attempt, name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    attempt.figures[f"{name}_ms"] = round((time.monotonic() - begun) * 1000, 2)


def _connected(attempt: _Attempt) -> socket.socket:
    try:
        with _timed(attempt, "connect"):
            sock = _dial(attempt)
    except TimeoutError:
        advice = "look for a firewall, a network policy or a route that loses packets between here and there"
        raise _StageError(f"takes no connection within {attempt.around.timeout_s:g} s", advice) from None
    except ConnectionRefusedError:
        raise _StageError("no process listens there", "start it, or correct the address in endpoints") from None
    except OSError as error:
        raise _StageError(f"no connection: {error.strerror or error}", "look at the address in endpoints, and at the network") from None
    attempt.steps.append(f"connected in {attempt.figures['connect_ms']:g} ms")
    return sock


def _dial(attempt: _Attempt) -> socket.socket:
    _, family, host, *port = attempt.wire
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(attempt.deadline.left())
        sock.connect((host, *port) if port else host)
        sock.sendall(own_header(attempt.upstream))
    except OSError:
        sock.close()
        raise
    return sock


def _encrypted(attempt: _Attempt, sock: socket.socket, tls: UpstreamTls) -> ssl.SSLSocket:
    try:
        context = upstream_context(tls)
        with _timed(attempt, "tls"):
            sock.settimeout(attempt.deadline.left())
            encrypted = context.wrap_socket(sock, server_hostname=attempt.name)
    except ssl.SSLCertVerificationError as error:
        shown = _shown_by(attempt)
        advice = _ADVICE.get(error.verify_code, "look at its certificate, and at tls.ca")
        raise _StageError(f"its certificate is refused: {error.verify_message}{shown}", advice) from None
    except TimeoutError:
        advice = "look whether it speaks TLS at all on this port: it took the connection and said nothing"
        raise _StageError(f"no TLS handshake within {attempt.around.timeout_s:g} s", advice) from None
    except (OSError, ProxyError) as error:
        raise _tls_failure(error) from None
    der = encrypted.getpeercert(binary_form=True) or b""
    attempt.peer, attempt.weak = _facts(der)
    cipher = encrypted.cipher()
    attempt.figures.update({"tls_version": encrypted.version() or "", "cipher": cipher[0] if cipher else ""})
    left = f", certificate {days(attempt.peer.ends, attempt.around.now())}" if attempt.peer is not None else ""
    attempt.steps.append(f"{encrypted.version()} with {cipher[0] if cipher else '?'} in {attempt.figures['tls_ms']:g} ms{left}")
    if tls.pins and key_pin(der) not in tls.pins:
        encrypted.close()
        raise _StageError(f"its certificate has the key {key_pin(der)}, which is none of pins", "add it to tls.pins, if it is to be trusted")
    return encrypted


def _tls_failure(error: Exception) -> _StageError:
    reason = (error.reason or str(error)) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
    words = f"TLS failed: {reason.lower().replace('_', ' ')}"
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "PACKET_LENGTH" in reason:
        return _StageError(words, "it does not speak TLS on this port: take another one, or leave tls out of the upstream")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE" in reason):
        return _StageError(words, "it wants a certificate of ours that it trusts: tls.certificate and tls.key of the upstream")
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return _StageError(words, "look at its log: it ended the connection; it may want a certificate of ours (tls.certificate)")
    return _StageError(words, "look at its log: it ended the handshake; versions, ciphers and certificates must suit both")


def _facts(der: bytes) -> tuple[CertificateFacts | None, str | None]:
    try:
        certificate = x509.load_der_x509_certificate(der)
        return facts_of(certificate), weakness(certificate)
    except ValueError:  # OpenSSL has accepted it; only the texts lack its facts
        return None, None


def _shown_by(attempt: _Attempt) -> str:
    """What the refused certificate says: the address is connected once more, without verification and without a certificate of ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _dial(attempt) as sock, context.wrap_socket(sock, server_hostname=attempt.name) as encrypted:
            attempt.peer, attempt.weak = _facts(encrypted.getpeercert(binary_form=True) or b"")
    except OSError as error:
        return f" (it could not be looked at closer: {error.strerror or error})"
    if attempt.peer is None:
        return ""
    peer = attempt.peer
    names = ", ".join(peer.names) or "no names"
    return f" (it is {peer.subject or 'without a subject'}, for {names}, made by {peer.issuer}, {days(peer.ends, attempt.around.now())})"


def _answered(attempt: _Attempt, sock: socket.socket) -> None:
    begun: Callable[[], contextlib.AbstractContextManager[None]] = functools.partial(_timed, attempt, "frames")
    head = b""
    try:
        with begun():
            sock.settimeout(attempt.deadline.left())
            _send(sock, question())
            head = _exactly(attempt, sock, 4)
            size = int.from_bytes(head, "big")
            if size > MAX_ANSWER:
                raise _StageError(_no_kafka(head), _WRONG_PORT)
            found = ranges_in(_exactly(attempt, sock, size))
    except TimeoutError:
        advice = "look whether it is a Kafka broker, and whether it hangs: it took the connection and did not answer ApiVersions"
        raise _StageError(f"no answer to ApiVersions within {attempt.around.timeout_s:g} s", advice) from None
    except EOFError:
        raise _StageError("ends the connection instead of answering ApiVersions", _WRONG_PORT) from None
    except ssl.SSLError as error:
        raise _tls_failure(_alert(sock) or error) from None
    except (OSError, ProxyError) as error:
        alert = _alert(sock)
        if alert is not None:
            raise _tls_failure(alert) from None
        raise _StageError(f"no answer to ApiVersions: {getattr(error, 'strerror', None) or error}", _WRONG_PORT) from None
    attempt.figures["apis"] = len(found)
    attempt.steps.append(f"ApiVersions answered in {attempt.figures['frames_ms']:g} ms with {len(found)} APIs")
    if attempt.upstream.sasl is None:
        _ask_metadata(attempt, sock, found)


def _ask_metadata(attempt: _Attempt, sock: socket.socket, ranges: Sequence[ApiRange]) -> None:
    """Ask where clients are sent. A broker that needs a login ends the connection instead, which is no fault."""
    asked = metadata_question(ranges)
    if asked is None:
        attempt.unasked = "no version of Metadata is known both here and there"
        return
    version, request = asked
    try:
        _send(sock, request)
        size = int.from_bytes(_exactly(attempt, sock, 4), "big")
        if size <= MAX_ANSWER:
            attempt.brokers = brokers_in(_exactly(attempt, sock, size), version)
    except (OSError, EOFError, ProxyError) as error:
        attempt.unasked = f"Metadata is not answered ({str(error) or 'the connection is ended'}): clients of this upstream may have to log in first"


def _send(sock: socket.socket, body: bytes) -> None:
    sock.sendall(len(body).to_bytes(4, "big") + body)


def _alert(sock: socket.socket) -> ssl.SSLError | None:
    """The alert of a peer that ended TLS while we wrote: with TLS 1.3 it judges our certificate after the handshake."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    try:
        sock.recv(1)
    except ssl.SSLError as error:
        return error if "ALERT" in (error.reason or "") else None
    except OSError:  # there is no alert: the caller has the error of the write
        return None
    return None


_WRONG_PORT: Final = "look whether a Kafka broker listens on this port, and whether it speaks TLS there (tls of the upstream) or not"


def _no_kafka(head: bytes) -> str:
    if head.startswith(_TLS_ALERT):
        return "answers a plaintext request with a TLS alert: it speaks TLS on this port"
    return f"answers ApiVersions with {head!r}, which is no frame of Kafka's"


def _exactly(attempt: _Attempt, sock: socket.socket, size: int) -> bytes:
    """Raises EOFError and what sockets raise."""
    data = bytearray()
    while len(data) < size:
        sock.settimeout(attempt.deadline.left())
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _stays(attempt: _Attempt, sock: socket.socket) -> None:
    """A server that ends a silent connection will not take frames."""
    try:
        sock.settimeout(min(STAYS_S, attempt.deadline.left()))
        spoke = sock.recv(1)
    except TimeoutError:
        attempt.steps.append("stays open")
        return
    except ssl.SSLError as error:
        raise _tls_failure(error) from None
    except OSError as error:
        raise _StageError(f"ends the connection: {error.strerror or error}", "look at its log: it takes connections and breaks them") from None
    if not spoke:
        raise _StageError("ends the connection at once", "look at its log, and at who may connect to it")
    attempt.steps.append("stays open, and speaks first")
