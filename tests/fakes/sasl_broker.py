"""A broker that asks who comes, and says of each request from whom it was: Kafka's exchange over plain sockets."""

import hashlib
import socket
import struct
from collections.abc import Callable

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.auth_requests import AuthRequest, AuthResponse
from framegate.proxy.auth.client import FIRST_CORRELATION_ID
from framegate.proxy.auth.mechanism import Ask, RefusalError, Reply, ServerMechanism
from framegate.proxy.auth.oauthbearer import OAuthBearerServer
from framegate.proxy.auth.plain import PlainServer
from framegate.proxy.auth.scram import HASHES, ScramServer
from tests.fakes.sasl_frames import stored
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

_API_VERSIONS, _HANDSHAKE, _TOKEN = 18, 17, 36


class SaslBroker(ScriptedUpstream):
    """Answers a request, once it is known who sends it, with its correlation id, who that is, and its body."""

    def __init__(self, passwords: dict[str, str] | None = None, *, tokens: dict[str, str] | None = None, lifetime_ms: int = 0) -> None:
        super().__init__(self._talk)
        self.passwords = passwords or {}  # of users, for PLAIN and SCRAM
        self.tokens = tokens or {}  # whose they are, for OAUTHBEARER
        self.lifetime_ms = lifetime_ms  # of a session; 0: for ever
        self.words = "Authentication failed: Invalid username or password"  # with which a login is refused
        self.logins: list[str] = []  # who logged in, in order, again included
        self.refused = 0  # how many did not
        # (key, correlation id, who sent it) of all that was asked on any connection, the frames of SASL included
        self.requests: list[tuple[int, int, str]] = []
        self.bodies: dict[int, bytes] = {}  # what it answers to requests of a client that is known, by key, instead of who sent it
        self.hold: Callable[[int], None] = lambda key: None  # is called before the answer to each request of a client that is known

    def asked(self) -> list[int]:
        return [key for key, _, _ in self.requests]

    def _talk(self, sock: socket.socket) -> None:
        principal = ""
        mechanism: ServerMechanism | None = None
        while True:
            body = read_frame(sock)
            key, version, correlation = struct.unpack_from(">hhi", body)
            self.requests.append((key, correlation, principal))
            size = struct.unpack_from(">h", body, 8)[0]
            rest = body[10 + max(size, 0) :]
            if key == _API_VERSIONS and (not principal or correlation >= FIRST_CORRELATION_ID):
                known = ((3, 0, 12), (_HANDSHAKE, 0, 1), (_API_VERSIONS, 0, 0), (_TOKEN, 0, 1))
                error = 0 if version == 0 else 35  # it knows no other
                answer = struct.pack(">hi", error, len(known)) + b"".join(struct.pack(">hhh", *item) for item in known)
            elif key == _HANDSHAKE:
                mechanism = self._mechanism(rest[2:].decode())
                answer = struct.pack(">hi", 0, 0)
            elif key == _TOKEN and mechanism is not None:
                answer, done = self._token(mechanism, rest[4:])
                if done:
                    principal = mechanism.principal
                if answer[:2] == b"\0\x3a":
                    sock.sendall(frame(struct.pack(">i", correlation) + answer))
                    return
            elif principal:
                self.hold(key)
                answer = self.bodies.get(key, f"{principal}|".encode() + body)
            else:
                return
            sock.sendall(frame(struct.pack(">i", correlation) + answer))

    def _mechanism(self, name: str) -> ServerMechanism:
        if name in HASHES:
            return ScramServer(name)
        return OAuthBearerServer() if name == "OAUTHBEARER" else PlainServer()

    def _token(self, mechanism: ServerMechanism, token: bytes) -> tuple[bytes, bool]:
        """The answer to a token, and whether it was the last."""
        try:
            step = mechanism.evaluate(token)
            while isinstance(step, Ask):
                step = mechanism.resume(self._answer(step.auth_request))
        except RefusalError:
            self.refused += 1
            words = self.words.encode()
            return struct.pack(">hh", 58, len(words)) + words + struct.pack(">i", 0) + struct.pack(">q", 0), False
        assert isinstance(step, Reply)
        if mechanism.complete:
            self.logins.append(mechanism.principal)
        lifetime = self.lifetime_ms if mechanism.complete else 0
        return struct.pack(">hhi", 0, -1, len(step.token)) + step.token + struct.pack(">q", lifetime), mechanism.complete

    def _answer(self, question: AuthRequest) -> AuthResponse:
        if isinstance(question, q.WantCredential):
            password = self.passwords.get(question.user)
            unknown = hashlib.sha256(question.user.encode()).hexdigest()
            return stored(question.mechanism, password or unknown, is_known=password is not None)
        if isinstance(question, q.CheckPassword):
            good = self.passwords.get(question.user) == question.password
            return q.Accepted(question.user) if good else q.Refused("no")
        assert isinstance(question, q.CheckToken)
        user = self.tokens.get(question.token)
        return q.Refused("no") if user is None else q.Accepted(user)
