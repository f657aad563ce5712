"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): each side proves that it knows the password, without sending it.

- The whole nonce is compared, and the channel binding (CVE-2024-56128). librdkafka before 2.6.1 repeats its own half of the nonce and is refused, as
  by Kafka 4; the log names it.
- An unknown user gets a salt and goes on to the end, where the proof is wrong, with the same answer as for a wrong password.
- Kafka's delegation tokens (``tokenauth=true``) are refused.
- Names and passwords are UTF-8 bytes, as in Kafka, without SASLprep.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from framegate.proxy.auth.auth_requests import AuthResponse, ScramCredential, ScramKeys, WantCredential, WantScramKeys
from framegate.proxy.auth.mechanism import Ask, ClientMechanism, Next, RefusalError, Reply, ServerMechanism, expect
from framegate.proxy.auth.scram_messages import ClientFinal, ClientFirst, ServerFinal, ServerFirst
from framegate.proxy.errors import quoted, shown

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384  # The limits of Kafka. A server that asks for more costs the client much CPU time.

_TOKEN: Final = "tokenauth="
_MAX_SALT: Final = 1024


def new_nonce() -> str:
    """Half a nonce: 192 bits."""
    return secrets.token_urlsafe(24)


def signature_of(mechanism: str, key: bytes, message: str) -> bytes:
    """HMAC of a message under a key, with the mechanism's hash."""
    return hmac.digest(key, message.encode(), HASHES[mechanism])


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


class ScramServer(ServerMechanism):
    """The server's side."""

    def __init__(self, mechanism: str, nonce: Callable[[], str] = new_nonce) -> None:
        super().__init__()
        self._mechanism: Final = mechanism
        self._new_nonce: Final = nonce
        self._client_first: ClientFirst | None = None
        self._server_first: ServerFirst | None = None
        self._credential: ScramCredential | None = None

    def evaluate(self, token: bytes) -> Next:
        return self._first(token) if self._client_first is None else self._final(token)

    def _first(self, token: bytes) -> Next:
        message = ClientFirst.read(token)
        self.user = message.user
        if message.authorization not in ("", message.user):
            raise RefusalError(f"the client is {quoted(message.user)} and wants to be {quoted(message.authorization)}")
        if any(text.startswith(_TOKEN) and text != f"{_TOKEN}false" for text in message.extensions):
            raise RefusalError("a delegation token is no user")
        self._client_first = message
        return Ask(WantCredential(self._mechanism, message.user))

    def resume(self, answer: AuthResponse) -> Next:
        credential = expect(ScramCredential, answer)
        client_first = self._client_first
        assert client_first is not None, "the first message came"
        self._credential = credential
        self._server_first = ServerFirst.of(client_first.nonce + self._new_nonce(), credential.salt, credential.iterations)
        return Reply(self._server_first.write())

    def _final(self, token: bytes) -> Next:
        client_first, server_first, credential = self._client_first, self._server_first, self._credential
        assert client_first is not None, "the first message came"
        assert server_first is not None, "nothing is read while an auth request is open"
        assert credential is not None, "the first reply was made of it"
        self._credential = None
        message = ClientFinal.read(token)
        if message.binding != client_first.gs2_header.encode():
            raise RefusalError("the final message is bound to another channel than the first")
        if message.nonce != server_first.nonce:
            repeated = message.nonce == client_first.nonce + server_first.nonce
            raise RefusalError(f"the nonce is not the one that was agreed{' (librdkafka before 2.6.1 repeats its own)' if repeated else ''}")
        exchange = f"{client_first.bare},{server_first.text},{message.unproven}"
        is_right = self._proves(message.proof, credential, exchange)
        if not credential.is_known or not is_right:
            raise RefusalError("wrong password" if credential.is_known else "no such user")
        self.principal, self.lifetime_ms, self.complete = client_first.user, credential.lifetime_ms, True
        return Reply(ServerFinal(signature_of(self._mechanism, credential.server_key, exchange)).write())

    def _proves(self, proof: bytes, credential: ScramCredential, exchange: str) -> bool:
        signature = signature_of(self._mechanism, credential.stored_key, exchange)
        if len(proof) != len(signature):
            return False
        stored = hashlib.new(HASHES[self._mechanism], _xor(proof, signature)).digest()
        return hmac.compare_digest(stored, credential.stored_key)


class ScramClient(ClientMechanism):
    """The client's side. Control keeps the password and answers with the keys for the server's salt."""

    def __init__(self, mechanism: str, user: str, credential: str, nonce: Callable[[], str] = new_nonce) -> None:
        super().__init__()
        self._mechanism: Final = mechanism
        self._user: Final = user
        self._credential: Final = credential
        self._first: Final = ClientFirst.of(user, nonce())
        self._server_first: ServerFirst | None = None
        self._expected: bytes | None = None

    def begin(self) -> Next:
        return Reply(self._first.write())

    def evaluate(self, token: bytes) -> Next | None:
        if self._server_first is None:
            return self._ask(token)
        if self._expected is None:
            raise RefusalError("a second server-first message")
        message = ServerFinal.read(token)
        if message.error:
            raise RefusalError(f"the server says {shown(message.error)}")
        if not hmac.compare_digest(message.signature, self._expected):
            raise RefusalError("the server does not know the user: its signature is wrong")
        self.complete = True
        return None

    def _ask(self, token: bytes) -> Next:
        message = ServerFirst.read(token)
        if not message.nonce.startswith(self._first.nonce) or message.nonce == self._first.nonce:
            raise RefusalError("the server's nonce does not go on from ours")
        if not MIN_ITERATIONS <= message.iterations <= MAX_ITERATIONS:
            raise RefusalError(f"the server asks for {message.iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are made")
        if not 0 < len(message.salt) <= _MAX_SALT:
            raise RefusalError(f"a salt of {len(message.salt)} bytes")
        self._server_first = message
        return Ask(WantScramKeys(self._credential, self._mechanism, message.salt, message.iterations))

    def resume(self, answer: AuthResponse) -> Next:
        keys = expect(ScramKeys, answer)
        self.secrets = (keys.client_key, keys.server_key)
        server_first = self._server_first
        assert server_first is not None, "the server's first message came"
        final = ClientFinal.of(self._first.gs2_header, server_first.nonce)
        exchange = f"{self._first.bare},{server_first.text},{final.unproven}"
        stored = hashlib.new(HASHES[self._mechanism], keys.client_key).digest()
        proof = _xor(keys.client_key, signature_of(self._mechanism, stored, exchange))
        self._expected = signature_of(self._mechanism, keys.server_key, exchange)
        return Reply(final.write(proof))
