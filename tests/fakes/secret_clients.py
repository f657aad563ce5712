"""What clients do with canaries (``secretive``): logins with every mechanism, those that are refused, broken frames, SASL that is not ours."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric import ec

from tests.fakes.sasl_frames import handshake, plain_token, token
from tests.fakes.secretive import USER, Secretive, exchange, scram
from tests.fakes.upstream import ask, frame, read_frame

Client = Callable[[socket.socket], object]


def oauth(text: str) -> bytes:
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


def is_let_in(answer: bytes) -> bool:
    """Whether an answer to SaslAuthenticate v2 says so."""
    return answer[5:7] == b"\0\0"


def let_in(rig: Secretive) -> None:
    """Each mechanism, in plaintext and within TLS, from the first frame on and in bare tokens."""
    context = client_context(rig)
    for listener, tls in (("sasl", None), ("tls", context)):
        with rig.proxy.connect(listener, tls) as sock:
            assert is_let_in(exchange(sock, "PLAIN", plain_token(rig.password, USER)))
            assert ask(sock, rig.marked.encode()) == rig.marked.encode(), "from a handler process"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            with rig.proxy.connect(listener, tls) as sock:
                assert is_let_in(scram(sock, mechanism, USER, rig.password))
        with rig.proxy.connect(listener, tls) as sock:
            assert is_let_in(exchange(sock, "OAUTHBEARER", oauth(rig.token(f"token of {listener}", sub=rig.marked))))
    with rig.proxy.connect("sasl") as sock:
        assert exchange(sock, "PLAIN", plain_token(rig.password, USER), version=0) == b""


def client_context(rig: Secretive) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(rig.certificates.ca))


def wrong_logins(rig: Secretive) -> list[Client]:
    """What is refused for what it says."""
    new = rig.canaries.text

    def plain(data: bytes) -> Client:
        return lambda sock: exchange(sock, "PLAIN", data)

    def bearer(data: bytes) -> Client:
        return lambda sock: exchange(sock, "OAUTHBEARER", data, b"\x01")

    other = ec.generate_private_key(ec.SECP256R1())
    word = rig.canaries.word
    return [
        plain(plain_token(rig.wrong, USER)),
        plain(plain_token(new("password of an unknown user"), "nobody")),
        plain(plain_token(rig.password, USER, "somebody else")),
        plain(plain_token(new("password without a user"), "")),
        plain(plain_token(new("one field too many") + "\0", USER)),
        plain(new("one field").encode()),
        plain(new("two fields").encode() + b"\0" + new("two fields, the second").encode()),
        plain(b"\0alice\0" + new("not UTF-8").encode() + b"\xff"),
        plain(plain_token(new("half of a character") + "\\ud800", "\x01\x02")),
        lambda sock: exchange(sock, "PLAIN", plain_token(new("bare, wrong"), USER), version=0),
        lambda sock: scram(sock, "SCRAM-SHA-256", USER, rig.wrong),
        lambda sock: scram(sock, "SCRAM-SHA-512", "nobody", new("unknown user of SCRAM")),
        lambda sock: exchange(sock, "SCRAM-SHA-256", plain_token(new("PLAIN where SCRAM belongs"), USER)),
        lambda sock: exchange(sock, "SCRAM-SHA-512", b"n,,n=alice,r=abc," + new("an extension that is none").encode()),
        lambda sock: exchange(sock, "SCRAM-SHA-512", new("no gs2 header").encode()),
        lambda sock: exchange(sock, "SCRAM-SHA-512", b"n,,n=alice,r=abc", new("no client-final").encode()),
        lambda sock: exchange(sock, "SCRAM-SHA-512", b"n,,n=alice,r=abc", f"c=biws,r=abc,p={word('a proof that is none')}".encode()),
        bearer(oauth(rig.token("expired", exp=time.time() - 1000))),
        bearer(oauth(rig.token("not yet", nbf=time.time() + 1000))),
        bearer(oauth(rig.token("for others", aud="others"))),
        bearer(oauth(rig.token("of others", iss="others"))),
        bearer(oauth(rig.token("nobody's", sub=""))),
        bearer(oauth(rig.token("signed by others", signer=other))),
        bearer(oauth(rig.token("broken")[:-5] + "AAAAA")),
        bearer(oauth("eyJhbGciOiJub25lIn0.e30." + word("not signed"))),
        bearer(oauth(word("garbage"))),
        bearer(oauth(f"{word('garbage, first')}.{word('garbage, second')}.{word('garbage, third')}")),
        bearer(f"n,,\x01auth=Basic {word('Basic')}\x01\x01".encode()),
        bearer(f"n,,\x01auth={word('no scheme')} x\x01\x01".encode()),
        bearer(f"n,,\x01auth=Bearer {word('no end')}\x01".encode()),
        bearer(f"n,,\x01{word('no pair')}\x01\x01".encode()),
        bearer(f"{word('no header')}\x01auth=Bearer x\x01\x01".encode()),
        bearer(b"\xff" + word("not UTF-8 either").encode()),
    ]


def broken_frames(rig: Secretive) -> list[Client]:
    """What is refused for its form."""
    new = rig.canaries.text

    def sends(*parts: bytes) -> Client:
        return lambda sock: sock.sendall(b"".join(parts))

    def auth(place: str, version: int = 1) -> bytes:
        return token(plain_token(new(place), USER), 2, version)

    cut, tiny = auth("cut off"), frame(auth("beyond its frame"))
    return [
        sends(frame(auth("before the handshake"))),
        sends(frame(plain_token(new("bare, first of all"), USER))),
        sends(frame(handshake("GSSAPI", 1)), frame(auth("mechanism that is not enabled"))),
        sends(frame(handshake("PLAIN", 1)), frame(cut)[:-3]),
        sends(frame(handshake("PLAIN", 1)), struct.pack(">i", len(cut) - 3), cut),
        sends(frame(handshake("PLAIN", 1)), frame(auth("of a version that is none", 1).replace(b"\0\x24\0\x01", b"\0\x24\0\x63", 1))),
        sends(frame(handshake("PLAIN", 1)), struct.pack(">i", 600_000), new("too large").encode() * 10),
        sends(frame(handshake("PLAIN", 1)), struct.pack(">i", -1), new("of a negative size").encode()),
        sends(frame(handshake("PLAIN", 1)), struct.pack(">i", len(tiny) // 2), tiny),
        sends(frame(handshake("PLAIN", 1)), frame(handshake("PLAIN", 2) + new("behind a handshake").encode())),
        sends(frame(handshake("PLAIN", 1)), frame(b"\0\x24\0\1\0\0\0\2\0\1c\x7f\xff\xff\xff" + new("of a length that is none").encode())),
        sends(b"POST /login HTTP/1.1\r\nAuthorization: Basic " + new("HTTP").encode() + b"\r\n\r\n"),
        sends(new("plain text").encode() * 3),
    ]


def passed_through(rig: Secretive) -> None:
    """SASL that is not ours: between a client and its broker, with every mechanism, while the tap records all."""
    with rig.proxy.connect("through") as sock:
        exchange(sock, "PLAIN", plain_token(rig.password, USER), version=1)
        sock.sendall(frame(struct.pack(">hhih", 3, 12, 7, -1) + rig.marked.encode()))
        assert rig.marked.encode() in read_frame(sock)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with rig.proxy.connect("through") as sock:
            scram(sock, mechanism, USER, rig.password, version=1)
    rig.open_broker.words = f"no such password: {rig.wrong}"
    with rig.proxy.connect("through") as sock:
        assert rig.wrong.encode() in exchange(sock, "PLAIN", plain_token(rig.wrong, USER), version=1), "the client hears what its broker says"
    with rig.proxy.connect("through") as sock:
        exchange(sock, "OAUTHBEARER", oauth(rig.canaries.word("token, passed through")), version=1)
    with rig.proxy.connect("through") as sock, contextlib.suppress(EOFError, ConnectionError):
        cut = token(plain_token(rig.canaries.text("passed through, cut off"), USER), 2, 1)
        sock.sendall(frame(handshake("PLAIN", 1, 1)) + frame(cut)[:-2])
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1000):
            pass


def to_upstreams(rig: Secretive) -> None:
    """Our own logins, good and refused, and secrets that are not to be had."""
    for listener, good in rig.logins.items():
        assert (rig.marked.encode() in rig.ask(listener)) == good, listener
        assert not rig.ask(listener) or good
    path = rig.secret_file("up-0")
    second = rig.canaries.text("a second line of a password")
    for change in (lambda: path.write_text(f"{path.read_text()}{second}\n"), path.unlink, path.mkdir):
        change()
        assert rig.ask("up-0") == b""


def refused(rig: Secretive, listener: str, client: Client, context: ssl.SSLContext | None = None) -> None:
    """Have a client do what it does, up to the end of its connection."""
    with rig.proxy.connect(listener, context) as sock, contextlib.suppress(EOFError, ConnectionError):
        client(sock)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def in_clear(rig: Secretive) -> list[Client]:
    """Clients that do not know that the listener speaks TLS."""
    data = frame(handshake("PLAIN", 1)) + frame(token(plain_token(rig.canaries.text("in clear to TLS"), USER), 2, 1))
    text = rig.canaries.text("HTTP to TLS").encode()
    return [lambda sock: sock.sendall(data), lambda sock: sock.sendall(b"GET /?password=" + text + b" HTTP/1.1\r\n\r\n")]
