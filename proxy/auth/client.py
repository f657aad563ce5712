"""Kafka's SASL exchange with an upstream, from the client's side: ApiVersions, SaslHandshake, then tokens until both sides are done.

A broker without SaslAuthenticate (before Kafka 1.0) gets bare tokens; if it refuses them it closes. Of each request the highest version that both
sides know is used. A broker's error text is logged, at most a line of it, and not if it contains our secret.

A later login in the same connection (KIP-368) begins with the handshake, as Kafka's clients do: after the end of a session a broker accepts nothing
else, and closes at ApiVersions.
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64

from framegate.proxy.auth import messages
from framegate.proxy.auth.auth_requests import CredentialSource, PendingAuth, Unavailable
from framegate.proxy.auth.mechanism import Ask, ClientMechanism, Next, RefusalError, Reply
from framegate.proxy.auth.oauthbearer import OAUTHBEARER, OAuthBearerClient
from framegate.proxy.auth.plain import PlainClient
from framegate.proxy.auth.scram import HASHES, ScramClient, new_nonce
from framegate.proxy.errors import AuthenticationError, LoginError, shown
from framegate.proxy.network.authenticator import ANONYMOUS, WAIT, Authenticator, AuthenticatorFactory, Waker
from framegate.proxy.network.frame_exchange import MAX_FRAME, FrameExchange
from framegate.proxy.network.transport import DONE, WANT_READ, WANT_WRITE, Identity

FIRST_CORRELATION_ID: Final = 0x7FFFFFF8  # the first of eight that Kafka reserves for SASL
MAX_WORDS: Final = 200  # of what a server says
_IDS: Final = 8
_MAX_LIFETIME_MS: Final = 1 << 40  # 35 years: no sum overflows; a longer lifetime counts as unlimited
_NS_PER_MS: Final = 1_000_000
_LASTING: Final = 1  # from this version on, SaslHandshake and SaslAuthenticate have sessions
Count = Callable[[str, str], None]
"""Called with the mechanism and the error (``framegate.proxy.cells.metrics.AUTHENTICATION_ERRORS``), once for each exchange."""
_FAILURES: Final = {messages.SASL_AUTHENTICATION_FAILED: "credentials", messages.UNKNOWN_SERVER_ERROR: "unavailable"}
_RENEWED_AT: Final = (0.85, 0.95)  # of a lifetime, at random: connections renew at different times


@dataclass(frozen=True, slots=True)
class SaslClientSettings:
    """A login to an upstream."""

    mechanism: str  # of SASL
    user: str  # the user; for OAUTHBEARER the authorization id, or empty
    credential: str  # the name of the secret, in auth requests
    client_id: str = "framegate"  # in the headers of our requests
    max_frame: int = MAX_FRAME  # bytes of an answer


class _State(enum.Enum):
    """The request that waits for its answer."""

    BEGIN = "nothing sent"
    VERSIONS = "ApiVersions"
    HANDSHAKE = "SaslHandshake"
    TOKEN = "SaslAuthenticate"


class SaslClientAuthenticator(Authenticator):
    """Logs one connection in. Its ``principal`` is that of the upstream's certificate. ``again``: the connection has logged in before."""

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
        self.ranges: tuple[messages.ApiRange, ...] = ()  # the requests that the upstream understands
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
        # By request; without SaslAuthenticate tokens are bare.
        self._versions: dict[int, int] = dict.fromkeys((messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE), _LASTING) if again else {}
        self._requests: int = 0
        self._request: messages.RequestHeader = messages.RequestHeader(0, 0, 0)  # the one that waits for its answer
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
        mechanism = self._mechanism
        if mechanism is None:
            return words
        from framegate.proxy.auth.secret_redaction import redacted  # here: only refusals need it

        return redacted(words, mechanism.secrets)

    def close(self) -> None:
        pending_auth, self._pending_auth = self._pending_auth, None
        if pending_auth is not None:
            pending_auth.cancel()
            self._source.forget(pending_auth)
        self._frames = self._waker = self._mechanism = None

    # Requests.

    def _header(self, key: int, version: int) -> messages.RequestHeader:
        number = FIRST_CORRELATION_ID + self._requests % _IDS
        self._requests += 1
        self._request = messages.RequestHeader(key, version, number, self._settings.client_id)
        return self._request

    def _ask_versions(self, frames: FrameExchange) -> i64:
        self._state = _State.VERSIONS
        writer = messages.request_writer(self._header(messages.API_VERSIONS, 0))
        messages.ApiVersionsRequest().write(writer, 0)
        return self._send(frames, writer.message())

    def _ask_handshake(self, frames: FrameExchange) -> i64:
        self._state = _State.HANDSHAKE
        version = self._versions[messages.SASL_HANDSHAKE]
        writer = messages.request_writer(self._header(messages.SASL_HANDSHAKE, version))
        messages.HandshakeRequest(self._settings.mechanism).write(writer)
        return self._send(frames, writer.message())

    def _send_token(self, frames: FrameExchange, token: bytes) -> i64:
        version = self._versions.get(messages.SASL_AUTHENTICATE)
        if version is None:
            return self._send(frames, token)
        writer = messages.request_writer(self._header(messages.SASL_AUTHENTICATE, version))
        messages.TokenRequest(token).write(writer, version)
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
        answer = messages.ApiVersionsAnswer.read(messages.answer_reader(body, self._request), 0)
        if answer.error != messages.NONE:
            raise AuthenticationError(f"ApiVersions is answered with error {answer.error}")
        self.ranges = answer.ranges
        offered = {item.key: item for item in answer.ranges}
        for key in (messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE):
            known = messages.SUPPORTED[key]
            if key in offered and offered[key].least <= known.most:
                self._versions[key] = min(offered[key].most, known.most)
        if messages.SASL_HANDSHAKE not in self._versions:
            raise AuthenticationError("the upstream knows no SaslHandshake: it wants no SASL here")
        if messages.SASL_AUTHENTICATE not in self._versions:
            self._versions[messages.SASL_HANDSHAKE] = 0
        elif self._versions[messages.SASL_HANDSHAKE] == 0:
            del self._versions[messages.SASL_AUTHENTICATE]

    def _on_handshake(self, body: bytes) -> None:
        answer = messages.HandshakeAnswer.read(messages.answer_reader(body, self._request))
        name = self._settings.mechanism
        if answer.error == messages.UNSUPPORTED_SASL_MECHANISM:
            self._failure = "mechanism"
            raise AuthenticationError(f"{name} is not enabled; enabled are {shown(', '.join(answer.mechanisms), MAX_WORDS)}")
        if answer.error == messages.ILLEGAL_SASL_STATE:
            raise AuthenticationError("SaslHandshake is not expected: is there SASL at this address?")
        if answer.error != messages.NONE:
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
        answer = messages.TokenAnswer(messages.NONE, token=body)
        if messages.SASL_AUTHENTICATE in self._versions:
            answer = messages.TokenAnswer.read(messages.answer_reader(body, self._request), self._request.version)
        if answer.error != messages.NONE:
            words = shown(answer.message or "no reason", MAX_WORDS)
            self._failure = _FAILURES.get(answer.error, "protocol")
            raise AuthenticationError(words if answer.error == messages.SASL_AUTHENTICATION_FAILED else f"error {answer.error}: {words}")
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
    """Makes the authenticators of the connections to one upstream with one login."""

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
