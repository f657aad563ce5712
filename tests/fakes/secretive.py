"""A whole framegate in which every secret is a canary: clients and upstreams with every mechanism, files of every kind, the tap on, a collector;
what clients do with canaries there; and what its processes show of themselves.
"""

import base64
import contextlib
import hashlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from framegate.control.demo.certificates import Certificates, create
from framegate.control.identity.passwords import keys_of, new_credentials
from framegate.control.identity.users_file import changing, read_users
from framegate.proxy.auth.auth_requests import WantScramKeys
from framegate.proxy.auth.mechanism import Ask, Reply
from framegate.proxy.auth.scram import HASHES, ScramClient
from framegate.proxy.auth.server import MECHANISMS
from tests.fakes.canaries import Canaries
from tests.fakes.framegate import Framegate, child_pids
from tests.fakes.otlp_receiver import GrpcReceiver
from tests.fakes.sasl_broker import SaslBroker
from tests.fakes.sasl_frames import ITERATIONS, SALT, handshake, plain_token, token
from tests.fakes.upstream import ask, frame, read_frame

USER = "alice"
ISSUER, AUDIENCE = "https://id.example.com", "kafka"


class Secretive:
    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.folder = folder
        self.canaries = Canaries()  # all that must be nowhere; ``password`` is of ``USER``, ``wrong`` of nobody
        self.marker = Canaries()  # what may be seen: it stands in a request that the tap records, and in principals
        self.marked = self.marker.word("marker")
        self.password, self.wrong = self.canaries.text("password of a client"), self.canaries.text("wrong password of a client")
        self.certificates: Certificates = create(folder / "tls")
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.collector = undo.enter_context(GrpcReceiver())
        with changing(self.folder / "users") as users:
            users.add(USER, new_credentials(self.password, iterations=4096))
        public = json.loads(ECAlgorithm.to_jwk(self.key.public_key()))
        (self.folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
        self._keep_keys()
        self.logins: dict[str, bool] = {}  # to upstreams: names of listeners, and whether the broker lets us in
        self.answers: list[bytes] = []  # what was said when it was asked
        upstreams, listeners = self._upstreams(undo)
        self.open_broker = undo.enter_context(SaslBroker({USER: self.password}))
        upstreams.append({"name": "open", "endpoints": [self.open_broker.address]})
        common = {"address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "1MiB", "timeouts": {"failed_authentication": "0ms"}}
        sasl = {"mechanisms": list(MECHANISMS), "users": "users", "tokens": {"jwks": "jwks.json", "issuer": ISSUER, "audience": AUDIENCE}}
        tls = {"certificate": str(self.certificates.server), "key": str(self.certificates.server_key)}
        listeners += [
            {"name": "sasl", **common, "handler": "framegate.proxy.handler.echo:echo", "sasl": sasl},
            {"name": "tls", **common, "handler": "framegate.proxy.handler.echo:echo", "sasl": sasl, "tls": tls},
            {"name": "through", **common, "upstream": "open", "kafka": {}},
        ]
        otlp = {"endpoint": self.collector.endpoint, "interval": "2s", "signals": ["metrics", "traces", "logs"]}
        config = {
            "memory_pool": {"size": "32MiB"},
            "rotation": {"poll": "100ms", "grace": "200ms"},
            "handlers": {"processes": 1},
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}, "otlp": otlp},
            "listeners": listeners,
            "upstreams": upstreams,
            "tap": {"directory": "tap", "rules": [{"name": "all"}]},
        }
        self.proxy = undo.enter_context(Framegate(folder, config))

    # --- secrets ---------------------------------------------------------------------------------------------------------------

    def _keep_keys(self) -> None:
        """What is derived of the password, in the file and on the way; and what keys are made of."""
        file = read_users(self.folder / "users")
        self.canaries.keep("the file of users: decoy", file.decoy)
        for mechanism, item in file.users[USER].items():
            self._keep_derived(mechanism, self.password, item.salt, item.iterations)
        private = json.loads(ECAlgorithm.to_jwk(self.key))
        self.canaries.keep("the issuer's key", private["d"])
        for name, path in (("server", self.certificates.server_key), ("client", self.certificates.client_key)):
            key = serialization.load_pem_private_key(path.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self.canaries.keep(f"private key of the {name}", key.private_numbers().private_value.to_bytes(32, "big"))
            for number, line in enumerate(path.read_text().splitlines()[1:-1]):
                if len(line) >= 40:
                    self.canaries.keep(f"private key of the {name}, line {number}", line if number else line[36:])  # before, all keys are alike

    def _keep_derived(self, mechanism: str, password: str, salt: bytes, iterations: int, whose: str = USER) -> None:
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
        keys = keys_of(mechanism, password, salt, iterations)
        made = {"SaltedPassword": salted, "ClientKey": keys.client_key, "ServerKey": keys.server_key}
        made["StoredKey"] = hashlib.new(name, keys.client_key).digest()
        for kind, key in made.items():
            self.canaries.keep(f"{kind} of {whose}, {mechanism}", key)

    def token(self, place: str, *, signer: Any = None, **claims: Any) -> str:
        """A signed token, with a canary in it; its signature, and what is within, are canaries as well."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": time.time() + 3600, "jti": self.canaries.word(f"{place}: within")}
        made = jwt.encode({**usual, **claims}, signer or self.key, "ES256", headers={"kid": "k"})
        self.canaries.keep(f"{place}: signature", made.rpartition(".")[2])
        return made

    # --- upstreams -------------------------------------------------------------------------------------------------------------

    def _upstreams(self, undo: contextlib.ExitStack) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Upstreams with SASL, each with a listener of the same name; brokers that let nobody in say why with the secret in their words."""
        upstreams, listeners = [], []
        echoes = {"raw": "{}", "base64": "{base64}", "hex": "{hex}", "part": "{part}"}
        plans = [(mechanism, True, "") for mechanism in MECHANISMS]
        plans += [("PLAIN", False, form) for form in echoes.values()] + [("OAUTHBEARER", False, form) for form in echoes.values()]
        plans += [(mechanism, False, "no") for mechanism in HASHES]
        for number, (mechanism, good, form) in enumerate(plans):
            name = f"up-{number}"
            place = f"secret of {mechanism} to an upstream, {number}"
            secret = self.canaries.word(place) if mechanism == "OAUTHBEARER" else self.canaries.text(place)
            broker = undo.enter_context(SaslBroker({"gate": secret} if good else {}, tokens={secret: "gate"} if good else {}))
            encoded = base64.b64encode(f"\0gate\0{secret}".encode()).decode()
            words = form.format(secret, base64=encoded, hex=secret.encode().hex(), part=secret[-14:])
            broker.words = f"no: {words}"
            path = self.folder / f"secret-{number}"
            path.write_text(secret + "\n")
            path.chmod(0o600)
            file = {"token_file": str(path)} if mechanism == "OAUTHBEARER" else {"user": "gate", "password_file": str(path)}
            upstreams.append({"name": name, "endpoints": [broker.address], "sasl": {"mechanism": mechanism, **file}})
            listeners.append({"name": name, "address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "1MiB", "upstream": name})
            self.logins[name] = good
            if mechanism in HASHES:
                self._keep_derived(mechanism, secret, SALT, ITERATIONS, whose=name)
        return upstreams, listeners

    def secret_file(self, name: str) -> Path:
        """Of the login of a listener's upstream."""
        return self.folder / f"secret-{name.removeprefix('up-')}"

    # --- clients ---------------------------------------------------------------------------------------------------------------

    def ask(self, listener: str) -> bytes:
        """What a request is answered with; nothing where the connection ends."""
        request = struct.pack(">hhih", 3, 12, 7, -1) + self.marked.encode()
        with self.proxy.connect(listener) as client:
            client.sendall(frame(request))
            try:
                return read_frame(client)
            except (EOFError, ConnectionError):
                return b""


def exchange(sock: socket.socket, mechanism: str, *tokens: bytes, version: int = 2) -> bytes:
    """A handshake, and tokens in requests of this version; version 0: a handshake of version 0, and bare tokens. The last answer."""
    answer = b""
    for body in (handshake(mechanism, 1, min(version, 1)), *(token(item, 2, version) if version else item for item in tokens)):
        answer = ask(sock, body)
    return answer


def scram(sock: socket.socket, mechanism: str, user: str, password: str, version: int = 2) -> bytes:
    """A whole exchange; the last answer."""
    client = ScramClient(mechanism, user, "c")
    first = client.begin()
    assert isinstance(first, Reply)
    answer = exchange(sock, mechanism, first.token, version=version)
    found = re.search(rb"r=[^,]+,s=[^,]+,i=\d+", answer)
    assert found is not None
    step = client.evaluate(found[0])
    assert isinstance(step, Ask)
    assert isinstance(step.auth_request, WantScramKeys)
    last = client.resume(keys_of(mechanism, password, step.auth_request.salt, step.auth_request.iterations))
    assert isinstance(last, Reply)
    return ask(sock, token(last.token, 3, version))


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
    """Our own logins, good and refused, and secrets that cannot be read."""
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
    with rig.proxy.connect(listener, context) as sock, contextlib.suppress(EOFError, OSError):  # a reset, perhaps before its own end
        client(sock)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def in_clear(rig: Secretive) -> list[Client]:
    """Clients that do not know that the listener speaks TLS."""
    data = frame(handshake("PLAIN", 1)) + frame(token(plain_token(rig.canaries.text("in clear to TLS"), USER), 2, 1))
    text = rig.canaries.text("HTTP to TLS").encode()
    return [lambda sock: sock.sendall(data), lambda sock: sock.sendall(b"GET /?password=" + text + b" HTTP/1.1\r\n\r\n")]


_PAUSE_S = 0.002


class WatchedProcesses:
    """A context manager: looks at a process, and at all that come from it, again and again."""

    def __init__(self, pid: int) -> None:
        self.seen: dict[tuple[int, str], set[bytes]] = {}  # what was found, by pid and file
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def commands(self) -> set[str]:
        return {data.replace(b"\0", b" ").decode() for (_, name), found in self.seen.items() if name == "cmdline" for data in found}

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._look(self._pid)

    def _look(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            for name in ("cmdline", "environ"):
                self.seen.setdefault((pid, name), set()).add(Path(f"/proc/{pid}/{name}").read_bytes())
            for child in child_pids(pid):
                self._look(child)

    def __enter__(self) -> Self:
        self._look(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
