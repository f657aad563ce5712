"""Kafka's SASL exchange with an upstream, from the client's side: which versions, the handshake, tokens until both are content.

A broker that knows no SaslAuthenticate (before Kafka 1.0) is spoken to in bare tokens; one that refuses these just closes. Versions are the lesser of
what it and we know. What it says of an error is in the log, never longer than a line, and not if our secret is in it.

Who logs in again (KIP-368) begins with the handshake, as Kafka's clients do: a broker takes that alone behind the end of a session, and ends the
connection at ApiVersions.
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64

from framegate.proxy.auth.auth_requests import CredentialSource, PendingAuth, Unavailable
from framegate.proxy.auth.mechanism import Ask, ClientMechanism, Next, RefusalError, Reply, printable
from framegate.proxy.auth.messages import (
    API_VERSIONS,
    ILLEGAL_SASL_STATE,
    NONE,
    SASL_AUTHENTICATE,
    SASL_AUTHENTICATION_FAILED,
    SASL_HANDSHAKE,
    SUPPORTED,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_SASL_MECHANISM,
    ApiRange,
    ApiVersionsAnswer,
    ApiVersionsRequest,
    HandshakeAnswer,
    HandshakeRequest,
    RequestHeader,
    TokenAnswer,
    TokenRequest,
    answer_reader,
    request_writer,
)
from framegate.proxy.auth.oauthbearer import OAUTHBEARER, OAuthBearerClient
from framegate.proxy.auth.plain import PlainClient
from framegate.proxy.auth.scram import HASHES, ScramClient, new_nonce
from framegate.proxy.errors import AuthenticationError, LoginError
from framegate.proxy.network.authenticator import ANONYMOUS, WAIT, Authenticator, AuthenticatorFactory, Waker
from framegate.proxy.network.frame_exchange import MAX_FRAME, FrameExchange
from framegate.proxy.network.transport import DONE, WANT_READ, WANT_WRITE, Identity

__all__ = ["FIRST_CORRELATION_ID", "SaslClientAuthenticator", "SaslClientAuthenticators", "SaslClientSettings"]

FIRST_CORRELATION_ID: Final = 0x7FFFFFF8  # of Kafka's eight for SASL, which no other request has
_IDS: Final = 8
_MAX_LIFETIME_MS: Final = 1 << 40  # 35 years: no sum overflows; a longer lifetime counts as unlimited
_NS_PER_MS: Final = 1_000_000
_LASTING: Final = 1  # the version of SaslAuthenticate, and of the handshake before it, from which on a broker says how long it lasts
Count = Callable[[str, str], None]
"""Is told of each end: the mechanism, and why not (``framegate.proxy.cells.AUTHENTICATION_ERRORS``)."""
_FAILURES: Final = {SASL_AUTHENTICATION_FAILED: "credentials", UNKNOWN_SERVER_ERROR: "unavailable"}
_RENEWED_AT: Final = (0.85, 0.95)  # of a lifetime: not all at once


@dataclass(frozen=True, slots=True)
class SaslClientSettings:
    """What we are to an upstream.

    Attributes:
        mechanism: to prove it with.
        user: the user; for OAUTHBEARER the authorization id, or empty.
        credential: what to ask for to prove it.
        client_id: in the headers of our requests.
        max_frame: bytes of an answer.
    """

    mechanism: str
    user: str
    credential: str
    client_id: str = "framegate"
    max_frame: int = MAX_FRAME


class _State(enum.Enum):
    """Which answer is waited for."""

    BEGIN = "nothing sent"
    VERSIONS = "ApiVersions"
    HANDSHAKE = "SaslHandshake"
    TOKEN = "SaslAuthenticate"


class SaslClientAuthenticator(Authenticator):
    """One connection's. Its ``principal`` is the upstream's, as its certificate says. ``again``: it has logged in before, for a time that was told.

    Attributes:
        ranges: what the upstream understands.
    """

    def __init__(
        self,
        settings: SaslClientSettings,
        source: CredentialSource,
        peer: str,
        *,
        again: bool = False,
        nonce: Callable[[], str] = new_nonce,
        count: Count = lambda mechanism, error: None,
        chance: random.Random,
    ) -> None:
        super().__init__()
        self.ranges: tuple[ApiRange, ...] = ()
        self._settings: Final = settings
        self._name: Final = f"{settings.mechanism} as {settings.user}" if settings.user else settings.mechanism
        self._source: Final = source
        self._peer: Final = peer
        self._nonce: Final = nonce
        self._count: Final = count
        self._failure: str = "protocol"
        self._chance: Final = chance
        self._state: _State = _State.BEGIN
        self._again: Final = again
        # By key; of SaslAuthenticate none: bare tokens.
        self._versions: dict[int, int] = dict.fromkeys((SASL_HANDSHAKE, SASL_AUTHENTICATE), _LASTING) if again else {}
        self._requests: int = 0
        self._request: RequestHeader = RequestHeader(0, 0, 0)  # that is not answered
        self._frames: FrameExchange | None = None
        self._waker: Waker | None = None
        self._mechanism: ClientMechanism | None = None
        self._pending_auth: PendingAuth | None = None

    def start(self, frames: FrameExchange, waker: Waker) -> None:
        frames.max_size = self._settings.max_frame
        self._frames, self._waker = frames, waker

    def step(self) -> i64:
        frames = self._frames
        assert frames is not None, "started before it is stepped"
        if frames.is_sending:
            return WANT_WRITE
        if self.complete:
            return DONE
        try:
            code = self._step(frames)
        except AuthenticationError as error:
            if isinstance(error, LoginError):
                self._count(self._settings.mechanism, "unavailable")
                raise
            self._count(self._settings.mechanism, "credentials" if isinstance(error, RefusalError) else self._failure)
            raise LoginError(f"{self._name}: {self._without_secrets(str(error))}", refused=True) from None
        if code == DONE:
            self._count(self._settings.mechanism, "")
        return code

    def _step(self, frames: FrameExchange) -> i64:
        if self._pending_auth is not None:
            return self._on_auth_complete(frames, self._pending_auth)
        if self._state is _State.BEGIN:
            return self._ask_handshake(frames) if self._again else self._ask_versions(frames)
        body = frames.receive()
        return WANT_READ if body is None else self._on_frame(frames, body)

    def _without_secrets(self, words: str) -> str:
        """What is wrong, of which some may be the upstream's words."""
        mechanism = self._mechanism
        if mechanism is None:
            return words
        from framegate.proxy.auth.secret_redaction import redacted  # late: only refusals need it

        return redacted(words, mechanism.secrets)

    def close(self) -> None:
        pending_auth, self._pending_auth = self._pending_auth, None
        if pending_auth is not None:
            pending_auth.cancel()
            self._source.forget(pending_auth)
        self._frames = self._waker = self._mechanism = None

    # Requests.

    def _header(self, key: int, version: int) -> RequestHeader:
        number = FIRST_CORRELATION_ID + self._requests % _IDS
        self._requests += 1
        self._request = RequestHeader(key, version, number, self._settings.client_id)
        return self._request

    def _ask_versions(self, frames: FrameExchange) -> i64:
        self._state = _State.VERSIONS
        writer = request_writer(self._header(API_VERSIONS, 0))
        ApiVersionsRequest().write(writer, 0)
        return self._send(frames, writer.message())

    def _ask_handshake(self, frames: FrameExchange) -> i64:
        self._state = _State.HANDSHAKE
        version = self._versions[SASL_HANDSHAKE]
        writer = request_writer(self._header(SASL_HANDSHAKE, version))
        HandshakeRequest(self._settings.mechanism).write(writer)
        return self._send(frames, writer.message())

    def _send_token(self, frames: FrameExchange, token: bytes) -> i64:
        version = self._versions.get(SASL_AUTHENTICATE)
        if version is None:
            return self._send(frames, token)
        writer = request_writer(self._header(SASL_AUTHENTICATE, version))
        TokenRequest(token).write(writer, version)
        return self._send(frames, writer.message())

    def _send(self, frames: FrameExchange, body: bytes) -> i64:
        return WANT_READ if frames.send(body) else WANT_WRITE

    # Answers.

    def _on_frame(self, frames: FrameExchange, body: bytes) -> i64:
        if self._state is _State.VERSIONS:
            self._on_versions(body)
            return self._ask_handshake(frames)
        if self._state is _State.HANDSHAKE:
            self._on_handshake(body)
            return self._begin(frames)
        return self._on_token(frames, body)

    def _on_versions(self, body: bytes) -> None:
        answer = ApiVersionsAnswer.read(answer_reader(body, self._request), 0)
        if answer.error != NONE:
            raise AuthenticationError(f"ApiVersions is answered with error {answer.error}")
        self.ranges = answer.ranges
        offered = {item.key: item for item in answer.ranges}
        for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            known = SUPPORTED[key]
            if key in offered and offered[key].least <= known.most:
                self._versions[key] = min(offered[key].most, known.most)
        if SASL_HANDSHAKE not in self._versions:
            raise AuthenticationError("the upstream knows no SaslHandshake: it wants no SASL here")
        if SASL_AUTHENTICATE not in self._versions:
            self._versions[SASL_HANDSHAKE] = 0
        elif self._versions[SASL_HANDSHAKE] == 0:
            del self._versions[SASL_AUTHENTICATE]

    def _on_handshake(self, body: bytes) -> None:
        answer = HandshakeAnswer.read(answer_reader(body, self._request))
        name = self._settings.mechanism
        if answer.error == UNSUPPORTED_SASL_MECHANISM:
            self._failure = "mechanism"
            raise AuthenticationError(f"{name} is not enabled; enabled are {printable(', '.join(answer.mechanisms))}")
        if answer.error == ILLEGAL_SASL_STATE:
            raise AuthenticationError("SaslHandshake is not expected: is there SASL at this address?")
        if answer.error != NONE:
            raise AuthenticationError(f"SaslHandshake is answered with error {answer.error}")

    def _begin(self, frames: FrameExchange) -> i64:
        self._state = _State.TOKEN
        mechanism = self._mechanism = self._make()
        return self._do(frames, mechanism.begin())

    def _make(self) -> ClientMechanism:
        settings = self._settings
        if settings.mechanism in HASHES:
            return ScramClient(settings.mechanism, settings.user, settings.credential, self._nonce)
        if settings.mechanism == OAUTHBEARER:
            return OAuthBearerClient(settings.credential, authorization=settings.user)
        return PlainClient(settings.user, settings.credential)

    def _on_token(self, frames: FrameExchange, body: bytes) -> i64:
        mechanism = self._mechanism
        assert mechanism is not None, "made with the handshake's answer"
        answer = TokenAnswer(NONE, token=body)
        if SASL_AUTHENTICATE in self._versions:
            answer = TokenAnswer.read(answer_reader(body, self._request), self._request.version)
        if answer.error != NONE:
            words = printable(answer.message or "no reason")
            self._failure = _FAILURES.get(answer.error, "protocol")
            raise AuthenticationError(words if answer.error == SASL_AUTHENTICATION_FAILED else f"error {answer.error}: {words}")
        step = mechanism.evaluate(answer.token)
        if not mechanism.complete:
            assert step is not None, "an incomplete exchange has a next step"
            return self._do(frames, step)
        self._end(answer.lifetime_ms)
        return DONE

    def _end(self, lifetime_ms: int) -> None:
        waker = self._waker
        assert waker is not None, "started before it is stepped"
        if 0 < lifetime_ms < _MAX_LIFETIME_MS:
            now = waker.now_ns()
            self.expires_ns = now + lifetime_ms * _NS_PER_MS
            self.renew_ns = now + int(lifetime_ms * _NS_PER_MS * self._chance.uniform(*_RENEWED_AT))
        self._mechanism = None  # it has the secret
        self.principal = self._peer
        self.complete = True

    # The mechanism.

    def _do(self, frames: FrameExchange, step: Next) -> i64:
        if isinstance(step, Reply):
            return self._send_token(frames, step.token)
        return self._ask(frames, step)

    def _ask(self, frames: FrameExchange, step: Ask) -> i64:
        waker = self._waker
        assert waker is not None, "started before it is stepped"
        pending_auth = self._pending_auth = PendingAuth(step.auth_request, waker)
        self._source.ask(pending_auth)
        return self._on_auth_complete(frames, pending_auth)

    def _on_auth_complete(self, frames: FrameExchange, pending_auth: PendingAuth) -> i64:
        answer = pending_auth.answer
        if answer is None:
            return WAIT
        self._pending_auth = None
        if isinstance(answer, Unavailable):
            raise LoginError(f"{self._name}: the secret is not available: {answer.reason}", refused=False)
        mechanism = self._mechanism
        assert mechanism is not None, "only a mechanism asks"
        return self._do(frames, mechanism.resume(answer))


class SaslClientAuthenticators(AuthenticatorFactory):
    """Those of the connections to one upstream, with one identity."""

    def __init__(
        self,
        settings: SaslClientSettings,
        source: CredentialSource,
        *,
        nonce: Callable[[], str] = new_nonce,
        count: Count = lambda mechanism, error: None,
        chance: random.Random | None = None,
    ) -> None:
        self._settings: Final = settings
        self._source: Final = source
        self._nonce: Final = nonce
        self._count: Final = count
        self._chance: Final = chance or random.Random()

    def make(self, identity: Identity) -> SaslClientAuthenticator:
        return self._make(identity.subject or ANONYMOUS, again=False)

    def again(self, identity: Identity, principal: str) -> SaslClientAuthenticator:
        return self._make(principal, again=True)

    def _make(self, peer: str, *, again: bool) -> SaslClientAuthenticator:
        return SaslClientAuthenticator(self._settings, self._source, peer, again=again, nonce=self._nonce, count=self._count, chance=self._chance)
