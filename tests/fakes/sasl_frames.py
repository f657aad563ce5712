"""The frames of Kafka's authentication, written with ``struct`` and not with the code that they test; and whole exchanges of RFC 7677's user."""

import base64
import hashlib
import hmac
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from framegate.proxy.auth.auth_requests import KnownApis, ScramCredential, ScramKeys, Secret, WantScramKeys, WantSecret
from framegate.proxy.auth.messages import ApiRange, ApiVersionsAnswer
from framegate.proxy.auth.scram import HASHES
from tests.fakes.upstream import ask

USER_NAME = "user"
PASSWORD = "pencil"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
ITERATIONS = 4096
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


@dataclass(frozen=True)
class Exchange:
    """What client and server of a mechanism say, in turns."""

    client: tuple[bytes, ...]
    server: tuple[bytes, ...]
    client_nonce: Callable[[], str] = lambda: CLIENT_NONCE
    server_nonce: Callable[[], str] = lambda: SERVER_NONCE


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def compact(data: bytes) -> bytes:
    """With its length, which must be one byte's or two's, plus one before it."""
    size = len(data) + 1
    return (bytes((size,)) if size < 128 else bytes((size & 0x7F | 0x80, size >> 7))) + data


def request(key: int, version: int, correlation: int, rest: bytes, *, flexible: bool = False) -> bytes:
    """A request of the client ``c``."""
    return struct.pack(">hhi", key, version, correlation) + string("c") + (b"\0" if flexible else b"") + rest


def versions(version: int, correlation: int = 7, name: str = "test") -> bytes:
    rest = compact(name.encode()) + compact(b"1.0") + b"\0" if version >= 3 else b""
    return request(18, version, correlation, rest, flexible=version >= 3)


def versions_answer(version: int, *ranges: ApiRange, error: int = 0, correlation: int = 7) -> bytes:
    """Its answer; of version 3 on with the three that are always there."""
    if version < 3:
        items = b"".join(struct.pack(">hhh", item.key, item.least, item.most) for item in ranges)
        return struct.pack(">ihi", correlation, error, len(ranges)) + items + (struct.pack(">i", 0) if version else b"")
    known = sorted([*ranges, ApiRange(17, 0, 1), ApiRange(18, 0, 4), ApiRange(36, 0, 2)], key=lambda item: item.key)
    items = b"".join(struct.pack(">hhh", item.key, item.least, item.most) + b"\0" for item in known)
    return struct.pack(">ih", correlation, error) + bytes((len(known) + 1,)) + items + struct.pack(">i", 0) + b"\0"


def known_apis(*ranges: ApiRange, tags: tuple[tuple[int, bytes], ...] = ()) -> KnownApis:
    """What control says that an upstream understands."""
    return KnownApis.of(ApiVersionsAnswer(0, ranges, tags))


def handshake(mechanism: str, correlation: int = 7, version: int = 1) -> bytes:
    return request(17, version, correlation, string(mechanism))


def handshake_answer(*mechanisms: str, error: int = 0, correlation: int = 7) -> bytes:
    return struct.pack(">ihi", correlation, error, len(mechanisms)) + b"".join(map(string, mechanisms))


def token(data: bytes, correlation: int = 7, version: int = 2) -> bytes:
    if version == 2:
        return request(36, 2, correlation, compact(data) + b"\0", flexible=True)
    return request(36, version, correlation, struct.pack(">i", len(data)) + data)


def token_answer(
    data: bytes = b"", *, error: int = 0, message: str | None = None, lifetime: int = 0, version: int = 2, correlation: int = 7
) -> bytes:
    if version == 2:
        words = b"\0" if message is None else compact(message.encode())
        return struct.pack(">ibh", correlation, 0, error) + words + compact(data) + struct.pack(">q", lifetime) + b"\0"
    words = b"\xff\xff" if message is None else string(message)
    head = struct.pack(">ih", correlation, error) + words + struct.pack(">i", len(data)) + data
    return head + (struct.pack(">q", lifetime) if version else b"")


def answered(answer: bytes, correlation: int) -> bytes:
    """An answer to another request of the same kind."""
    return struct.pack(">i", correlation) + answer[4:]


def plain_token(password: str = PASSWORD, user: str = USER_NAME, authorization: str = "") -> bytes:
    """PLAIN's one message."""
    return f"{authorization}\0{user}\0{password}".encode()


def salted(mechanism: str, password: str = PASSWORD, salt: bytes = SALT, iterations: int = ITERATIONS) -> bytes:
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def stored(mechanism: str, password: str = PASSWORD, **extra: object) -> ScramCredential:
    name, secret = HASHES[mechanism], salted(mechanism, password)
    key = hmac.digest(secret, b"Client Key", name)
    return ScramCredential(SALT, ITERATIONS, hashlib.new(name, key).digest(), hmac.digest(secret, b"Server Key", name), **extra)  # type: ignore[arg-type]


def keys(question: WantScramKeys | WantSecret, password: str = PASSWORD) -> ScramKeys | Secret:
    """What an upstream's client asks for."""
    if isinstance(question, WantSecret):
        return Secret(password)
    secret = salted(question.mechanism, password, question.salt, question.iterations)
    name = HASHES[question.mechanism]
    return ScramKeys(hmac.digest(secret, b"Client Key", name), hmac.digest(secret, b"Server Key", name))


def scram_exchange(mechanism: str, user: str = "user") -> Exchange:
    """An exchange with RFC 7677's salt and nonces, computed from its formulas."""
    name, secret = HASHES[mechanism], salted(mechanism)
    first_bare = f"n={user},r={CLIENT_NONCE}"
    server_first = f"r={CLIENT_NONCE}{SERVER_NONCE},s={base64.b64encode(SALT).decode()},i={ITERATIONS}"
    unproven = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE}"
    message = f"{first_bare},{server_first},{unproven}".encode()
    key = hmac.digest(secret, b"Client Key", name)
    signature = hmac.digest(hashlib.new(name, key).digest(), message, name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    verifier = base64.b64encode(hmac.digest(hmac.digest(secret, b"Server Key", name), message, name))
    return Exchange((b"n,," + first_bare.encode(), f"{unproven},p=".encode() + proof), (server_first.encode(), b"v=" + verifier))


def log_in(client: socket.socket, user: str, password: str) -> bool:
    """With PLAIN: whether the user is let in."""
    for request_ in (handshake("PLAIN", 1), token(plain_token(password, user), 2)):
        answer_ = ask(client, request_)
    return answer_[5:7] == b"\0\0"
