"""The parts about identity: the storm of logins, who comes while certificates are swapped, and what is judged of them."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import certificates
import logins
import mutual
import native
import newcomers
import pytest
import rotation
from candidates import HaProxy, Place
from driver import VoidRoundError
from fetching import Fetched
from logins import Beside, Outcomes, Shares
from processes import Memory, Process
from rotation import Newcomer, Swap, judge
from shapes import SHAPES, Load

from proxy.auth.mechanism import Ask, Next, RefusalError, Reply, ServerMechanism
from proxy.auth.plain import PlainServer
from proxy.auth.questions import Accepted, Answer, CheckPassword, Question, Refused, WantCredential
from proxy.auth.scram import ScramServer
from tests.fakes.sasl_frames import PASSWORD, USER_NAME, handshake_answer, stored, token_answer
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/openssl/ssl.h").exists(),
    reason="needs a C compiler and OpenSSL's headers (Debian: apt-get install gcc libssl-dev)",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


class Broker(ScriptedUpstream):
    """Lets in who knows the password, and echoes what they send then; `spoils` says what it does wrong."""

    def __init__(self, spoils: str = "") -> None:
        super().__init__(self._talk)
        self._spoils = spoils

    def _talk(self, sock: socket.socket) -> None:
        body = read_frame(sock)
        name = body[17:].decode()
        mechanism: ServerMechanism = ScramServer(name) if name.startswith("SCRAM") else PlainServer()
        self._answer(sock, body, handshake_answer(name, correlation=0))
        while not mechanism.complete:
            body = read_frame(sock)
            if self._spoils == "silent":
                sock.recv(1)
                return
            if self._spoils == "end":
                return
            token = body[19:]
            try:
                step: Next | None = mechanism.evaluate(token)
                while isinstance(step, Ask):
                    step = mechanism.resume(self._told(step.question))
            except RefusalError:
                self._answer(sock, body, token_answer(error=58, message="no", version=1))
                return
            assert isinstance(step, Reply)
            is_wrong = self._spoils == "signature" and step.token.startswith(b"v=")
            self._answer(sock, body, token_answer(b"v=" + b"A" * 88 if is_wrong else step.token, version=1))
        body = read_frame(sock)
        sock.sendall(frame(body if self._spoils != "frame" else body[:-1] + bytes([body[-1] ^ 1])))

    @staticmethod
    def _answer(sock: socket.socket, asked: bytes, answer: bytes) -> None:
        sock.sendall(frame(asked[4:8] + answer[4:]))

    def _told(self, question: Question) -> Answer:
        if isinstance(question, WantCredential):
            return stored(question.mechanism, is_known=question.user == USER_NAME)
        assert isinstance(question, CheckPassword)
        return Accepted(question.user) if (question.user, question.password) == (USER_NAME, PASSWORD) else Refused("no")


def storm(cache: Path, port: int, *options: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
    command = [str(native.build("logins", cache)), "--connect", f"127.0.0.1:{port}", "--user", USER_NAME, "--password", password]
    return subprocess.run(
        [*command, "--rate", "100", "--warm-up", "0.1", "--seconds", "0.2", *options], capture_output=True, text=True, timeout=30, check=False
    )


def measured(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr
    rows = {row["event"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows["done"]["begun"] == 30
    found: dict[str, float] = rows["measured"]
    return found


@needs_compiler
@pytest.mark.slow  # a compiler, and threads
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_who_knows_the_password_comes_through_and_who_does_not_is_refused(cache: Path, mechanism: str) -> None:
    with closing(Broker()) as broker:
        row = measured(storm(cache, broker.port, "--mechanism", mechanism))
        assert (row["due"], row["through"], row["refused"], row["closed"], row["missing"]) == (20, 20, 0, 0, 0)
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
        row = measured(storm(cache, broker.port, "--mechanism", mechanism, password="another"))
        assert (row["due"], row["through"], row["refused"]) == (20, 0, 20)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("spoils", "outcome"), [("end", "closed"), ("silent", "missing")])
def test_a_login_without_a_word_is_none(cache: Path, spoils: str, outcome: str) -> None:
    with closing(Broker(spoils)) as broker:
        row = measured(storm(cache, broker.port, "--patience", "0.2"))
    assert (row["through"], row[outcome]) == (0, 20)


@needs_compiler
@pytest.mark.slow
def test_where_nobody_listens_every_login_is_closed(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert measured(storm(cache, port))["closed"] == 20


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("spoils", "words"), [("signature", "the server's signature is wrong"), ("frame", "a frame came back changed")])
def test_a_server_that_does_not_know_the_user_and_a_changed_frame_end_the_run(cache: Path, spoils: str, words: str) -> None:
    with closing(Broker(spoils)) as broker:
        done = storm(cache, broker.port)
    assert done.returncode == 1
    assert words in done.stderr


def beside(*, p99_ms: float = 2.0, quiet_ms: tuple[float, float] = (0.8, 1.2), lost: int = 0, missing: int = 0, **errors: int) -> Beside:
    def good(time_ms: float, missing: int = 0) -> Fetched:
        return Fetched("framegate-logins", 100, missing, 1.0, 1.0, 0.5, 0, 0, 0, 100.0, time_ms * 1000, 9000.0, 1.0)

    outcomes = Outcomes(100, 100 - lost, 0, lost, 0, 0, 1.0, 1.0, 2.0, 3.0)
    return Beside("SCRAM-SHA-512", "plain", [good(item) for item in quiet_ms], good(p99_ms, missing), outcomes, Shares(), 1.0, errors, {})


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (beside(p99_ms=1.99), [True, True]),
        (beside(p99_ms=2.0), [True, True]),
        (beside(p99_ms=2.01), [False, True]),
        (beside(missing=1), [False, True]),
        (beside(lost=1), [True, False]),
        (beside(unavailable=7), [True, True]),
        (beside(credentials=1), [True, False]),
    ],
)
def test_a_storm_may_double_the_others_p99_and_lets_in_or_refuses_as_busy_all(row: Beside, met: list[bool]) -> None:
    assert [figure.met for figure in logins._judged([row])] == met


def test_what_threads_ran_and_waited_for_is_seen(tmp_path: Path) -> None:
    process = Process("busy", [sys.executable, "-c", "while True: pass"], [0], tmp_path)
    try:
        with logins.sharing(process) as shares:
            threading.Event().wait(0.3)
    finally:
        process.stop()
    assert 0 < shares.control <= 1.05
    assert 0.9 < shares.control + shares.control_waited < 1.1
    assert shares.processors == 0


SECOND = 10**9
SWAPS = [Swap("a", 0, 0), Swap("b", 10 * SECOND, 11 * SECOND), Swap("c", 20 * SECOND, 21 * SECOND)]


@pytest.mark.parametrize(
    ("began", "shaken", "met", "astray"),
    [
        (9.0, 9.1, "a", 0),
        (9.0, 9.1, "b", 1),  # before its files were written
        (9.0, 10.0, "b", 0),
        (10.5, 10.6, "a", 0),
        (10.5, 10.6, "b", 0),
        (11.0, 11.1, "a", 0),  # in the very nanosecond
        (11.000000001, 11.1, "a", 1),  # after the acknowledgement
        (10.9, 12.0, "a", 0),  # begun before it
        (12.0, 12.1, "c", 1),
        (12.0, 12.1, "x", 1),
        (30.0, 30.1, "c", 0),
        (30.0, 30.1, "b", 1),
    ],
)
def test_a_connection_meets_a_certificate_that_is_in_force_while_it_shakes_hands(began: float, shaken: float, met: str, astray: int) -> None:
    row = Newcomer(round(began * SECOND), round(began * SECOND), round(shaken * SECOND), round(shaken * SECOND) + 1, met, "")
    assert judge([row], SWAPS).astray == astray


def test_what_is_said_of_newcomers() -> None:
    def row(due: float, took: float, error: str = "") -> Newcomer:
        at = round(due * SECOND)
        shaken = 0 if error else at + round(took * SECOND)
        return Newcomer(at, at, shaken, shaken, "a", error)

    rows = [row(1, 0.001), row(2, 0.002), row(9.95, 0.1), row(10.5, 0.004), row(10.6, 0, "reset"), row(10.7, 0, "reset"), row(10.8, 0.2)]
    verdict = judge(rows, SWAPS)
    assert (verdict.connections, verdict.failed, verdict.failures, verdict.met) == (7, 2, ("reset",), 1)
    assert verdict.per_second == pytest.approx(5 / 10)
    assert (verdict.quiet_p99_ms, verdict.quiet_max_ms) == (2.0, 2.0)
    assert (verdict.swap_p99_ms, verdict.swap_max_ms) == (200.0, 200.0)
    assert [figure.met for figure in rotation._judged(verdict, 2)] == [False, True, False]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[native.Certificate, native.Certificate, socket.socket]]:
    """An authority, a certificate that it signed, and a listening socket."""
    authority = native.make_certificate(tmp_path, name="authority")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield authority, native.make_certificate(tmp_path, name="server", issuer=authority), listener


def serve(listener: socket.socket, certificate: native.Certificate, answers: list[bytes | None]) -> None:
    """One connection for each answer: None closes it before it has shaken hands."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    for answer in answers:
        raw, _ = listener.accept()
        with raw:
            if answer is None:
                continue
            with suppress(OSError), context.wrap_socket(raw, server_side=True) as sock:  # of a client that goes without a word
                sock.recv(len(newcomers.FRAME))
                sock.sendall(answer)
                if sock.recv(1) == b"":
                    sock.unwrap()


def test_newcomers_say_what_they_met_and_what_went_wrong(served: tuple[native.Certificate, native.Certificate, socket.socket]) -> None:
    authority, certificate, listener = served
    other = native.make_certificate(certificate.certificate.parent, name="other")
    answers = [newcomers.FRAME, newcomers.FRAME[:-1] + b"x", None]
    thread = threading.Thread(target=serve, args=(listener, certificate, answers))
    thread.start()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    port = listener.getsockname()[1]
    good, changed, closed = (Newcomer(*newcomers.connect(port, context, 1)) for _ in answers)  # type: ignore[arg-type]
    thread.join()
    assert (good.due, good.error, good.met) == (1, "", rotation._fingerprint(certificate))
    assert good.began < good.shaken < good.back
    assert (changed.back, changed.met) == (0, good.met)
    assert "not those that were sent" in changed.error
    assert (closed.shaken, closed.met) == (0, "")
    assert closed.error
    thread = threading.Thread(target=serve, args=(listener, certificate, [newcomers.FRAME]))
    thread.start()
    stranger = newcomers.connect(port, ssl.create_default_context(cafile=str(other.certificate)), 1)
    thread.join()
    assert "CERTIFICATE_VERIFY_FAILED" in str(stranger[5])
    listener.close()
    assert "ConnectionRefusedError" in str(newcomers.connect(port, context, 1)[5])


@pytest.mark.slow  # an interpreter
def test_newcomers_come_at_their_rate_until_their_input_ends(served: tuple[native.Certificate, native.Certificate, socket.socket]) -> None:
    authority, certificate, listener = served
    thread = threading.Thread(target=serve, args=(listener, certificate, [newcomers.FRAME] * 3))
    thread.start()
    command = [sys.executable, "-I", str(rotation.PROGRAM), str(listener.getsockname()[1]), str(authority.certificate), "5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "begun"
        thread.join()
        process.stdin.close()
        rows = [Newcomer(*row) for row in json.loads(process.stdout.readline())["rows"]]
    assert [row.error for row in rows[:3]] == [""] * 3
    assert [rows[2].due - rows[1].due, rows[1].due - rows[0].due] == [SECOND // 5] * 2


def held(candidate: str, each: float = 20.0, left: float = 0.0, each_swap: float = 0.0) -> certificates.Held:
    """A thousand connections; `each` in KiB, `left` in MiB, `each_swap` in KiB."""
    full = 50 + each * 1000 / 1024
    return certificates.Held(candidate, 1000, 50, full, 20, 40 + left, 40 + left, 20 + left, full, 60, 61, 62 + each_swap * 10 / 1024, 10)


@pytest.mark.parametrize(
    ("mine", "met"),
    [
        (held("framegate", 25.0, 1.0, 12.0), [True] * 4),
        (held("framegate", 25.1), [False, False, True, True]),
        (held("framegate", left=1.01), [True, True, False, True]),
        (held("framegate", each_swap=12.1), [True, True, True, False]),
    ],
)
def test_connections_are_as_small_as_haproxys_and_an_old_certificate_goes(mine: certificates.Held, met: list[bool]) -> None:
    assert [figure.met for figure in certificates._judged([mine, held("haproxy")])] == met


class Shrinking:
    """A candidate whose memory falls to 100 MiB in steps."""

    def __init__(self, *sizes: float) -> None:
        self.sizes = list(sizes)
        self.process = self

    def total_memory(self) -> Memory:
        return Memory(self.sizes.pop(0) if self.sizes else 100.0, 0.0)


@pytest.mark.parametrize(("sizes", "left"), [((300, 300, 300, 299, 200, 100), 0), ((300, 100.1, 100, 100.1, 100, 100, 300, 300, 300, 300), 4)])
def test_memory_has_settled_when_it_has_not_moved_for_a_while(sizes: tuple[float, ...], left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0)
    candidate = Shrinking(*sizes)
    assert certificates._settled(candidate) == 100  # type: ignore[arg-type]
    assert len(candidate.sizes) == left


@needs_compiler
@pytest.mark.slow
def test_held_connections_show_their_certificate(cache: Path, served: tuple[native.Certificate, native.Certificate, socket.socket]) -> None:
    authority, certificate, listener = served
    client = native.make_certificate(certificate.certificate.parent, name="client", issuer=authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    shown: list[object] = []

    def answer() -> None:
        raw, _ = listener.accept()
        with raw, context.wrap_socket(raw, server_side=True) as sock:
            peer = sock.getpeercert()
            shown.append(None if peer is None else peer["subject"])
            sock.sendall(frame(read_frame(sock)))
            sock.recv(1)

    thread = threading.Thread(target=answer)
    thread.start()
    command = [str(native.build("opener", cache)), "--connect", f"127.0.0.1:{listener.getsockname()[1]}", "--hold", "1", "--tls"]
    pair = ["--certificate", str(client.certificate), "--key", str(client.key)]
    done = subprocess.run([*command, *pair], input="", capture_output=True, text=True, timeout=30, check=False)
    thread.join()
    assert (done.returncode, shown) == (0, [((("commonName", "client"),),)]), done.stderr


@pytest.mark.slow  # HAProxy's start
@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs HAProxy (Debian: apt-get install haproxy)")
def test_haproxy_serves_the_new_certificate_once_it_has_taken_it(tmp_path: Path) -> None:
    authority = native.make_certificate(tmp_path, name=mutual.AUTHORITY)
    client = native.make_certificate(tmp_path, name="client", issuer=authority)
    before = native.make_certificate(tmp_path, name="server", issuer=authority)
    place = Place(tmp_path, tmp_path, (0,), before, 1, 1, tmp_path)
    candidate = mutual.HaProxyMutual(place, Load(SHAPES[0], downstream_tls=True))
    context = ssl.create_default_context(cafile=str(authority.certificate))

    def met() -> str:
        with socket.create_connection(("127.0.0.1", candidate.port)) as raw, context.wrap_socket(raw, server_hostname="localhost") as sock:
            der = sock.getpeercert(binary_form=True)
            assert der is not None
            return ssl.DER_cert_to_PEM_cert(der)

    assert isinstance(candidate, HaProxy)
    candidate.start()
    try:
        context.load_cert_chain(client.certificate, client.key)
        assert met() == before.certificate.read_text()
        after = native.make_certificate(tmp_path, name="server", issuer=authority)
        candidate.take()
        assert met() == after.certificate.read_text()
        after.both.write_text("rubbish")
        with pytest.raises(VoidRoundError, match="haproxy-mutual"):
            candidate.take()
    finally:
        candidate.stop()
