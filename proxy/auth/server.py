"""Kafka's SASL exchange with a client: ApiVersions, SaslHandshake and SaslAuthenticate.

Every other request is refused by its header, from the first frame on (as in Kafka 4; the frames of clients before Kafka 0.10 are not supported). A
client may ask for versions once, and again if that could not be answered. A mechanism that is not enabled is answered with the enabled ones, and ends
the exchange. The answer to a refused client goes with the error; the channel sends it after the delay. It says no more than Kafka's: the text of the
mechanism if that says nothing about users, else that the credentials are invalid.

A session (KIP-368) lasts as long as the credential or the listener allows, whichever is shorter; it also ends for clients that are not told so.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from mypy_extensions import i64

from framegate.proxy.auth import messages
from framegate.proxy.auth.allowed_principals import AllowedPrincipals, not_allowed_text
from framegate.proxy.auth.auth_requests import CredentialSource, KnownApis, PendingAuth, SupportedApis, Unavailable
from framegate.proxy.auth.mechanism import Ask, Next, RefusalError, Reply, ServerMechanism, expect
from framegate.proxy.auth.oauthbearer import OAUTHBEARER, OAuthBearerServer
from framegate.proxy.auth.plain import PLAIN, PlainServer
from framegate.proxy.auth.scram import HASHES, ScramServer, new_nonce
from framegate.proxy.auth.server_state import ServerEvent, ServerState, next_state
from framegate.proxy.auth.wire import MalformedError, Reader
from framegate.proxy.errors import AuthenticationError, LoginError, quoted
from framegate.proxy.kafka.schema import api
from framegate.proxy.network.authenticator import WAIT, Authenticator, AuthenticatorFactory, Waker
from framegate.proxy.network.frame_exchange import MAX_FRAME, FrameExchange
from framegate.proxy.network.transport import DONE, WANT_READ, WANT_WRITE, Identity

MECHANISMS: Final = (PLAIN, *HASHES, OAUTHBEARER)
MAX_MESSAGE: Final = 65536  # Bytes of one message of a mechanism. Tokens with many groups have a few KiB; control must receive what it checks.
MAX_NAME: Final = 200  # characters that are kept of the name of a failed login
PROTOCOL: Final = "protocol"
NOT_ADMITTED: Final = "Authentication failed: the principal is not allowed to connect"
CANNOT_TELL: Final = "It cannot be told at the moment who the client is; it may try again"
CANNOT_LOG_IN: Final = "The proxy cannot log in to the upstream at the moment; the client may try again"
"""These two are not sent as SASL_AUTHENTICATION_FAILED, because clients take that for final and their applications end."""
Count = Callable[[str, str, int], None]
"""Called with the mechanism, the error (``framegate.proxy.cells.metrics.AUTHENTICATION_ERRORS``) and the duration in ns, once for each exchange."""
_NS_PER_MS: Final = 1_000_000
_MAX_LIFETIME_MS: Final = 1 << 40  # 35 years: no sum overflows
_ENDED: Final = 1  # on the selector's clock: long ago


@dataclass(frozen=True, slots=True)
class SaslServerSettings:
    """How the clients of one listener authenticate."""

    mechanisms: tuple[str, ...]  # the enabled ones, listed to a client that asks for another one
    max_session_ms: int = 0  # the longest session (Kafka's ``connections.max.reauth.ms``); 0: unlimited
    max_frame: int = MAX_FRAME  # bytes of a frame before the client is authenticated (Kafka's ``sasl.server.max.receive.size``)
    # whether clients may authenticate again in the same connection; if not, they are not told how long the session lasts
    reauthenticates: bool = True
    allowed_principals: AllowedPrincipals | None = None  # which of them may connect; None: all
    narrows: bool = False  # the answer to ApiVersions has only what framegate can read, because it must look into messages
    greatest: Callable[[int], int] | None = None  # by API key, the greatest version that is offered, -1: none; None: all of these


@dataclass(frozen=True, slots=True)
class Session:
    """The principal and mechanism of an authenticated client, which it must use again."""

    principal: str
    mechanism: str


class SaslServerAuthenticator(Authenticator):
    """Authenticates one client."""

    def __init__(
        self,
        settings: SaslServerSettings,
        source: CredentialSource,
        *,
        session: Session | None = None,
        nonce: Callable[[], str] = new_nonce,
        count: Count = lambda mechanism, error, duration_ns: None,
        identity: Identity | None = None,
        peer: str = "",
    ) -> None:
        super().__init__()
        self.mechanism_name: str = ""  # that the client chose; empty before
        self.lifetime_ms: int = 0  # of the session, as sent to the client; 0: unlimited
        self.can_reauthenticate: bool = False  # the client's version of SaslAuthenticate has the session's lifetime
        self._settings: Final = settings
        self._source: Final = source
        self._session: Final = session
        self._nonce: Final = nonce
        self._count: Final = count
        self._identity: Final = identity
        self._peer: Final = peer
        self._failure: str = PROTOCOL
        self._state: ServerState = ServerState.INITIAL if session is None else ServerState.REAUTHENTICATE
        self._frames: FrameExchange | None = None
        self._waker: Waker | None = None
        self._request: messages.RequestHeader = messages.RequestHeader(0, 0, 0)  # the one that is being answered
        self._mechanism: ServerMechanism | None = None
        self._pending_auth: PendingAuth | None = None
        self._last: bytes | None = None  # the mechanism's last message, while the client waits for it
        self._since_ns: i64 = 0

    def start(self, frames: FrameExchange, waker: Waker) -> None:
        frames.max_size = self._settings.max_frame
        self._frames, self._waker = frames, waker
        self._since_ns = waker.now_ns()

    def step(self) -> i64:
        frames, waker = self._frames, self._waker
        assert frames is not None, "started before it is stepped"
        assert waker is not None, "started before it is stepped"
        if frames.is_sending:
            return WANT_WRITE
        if self.complete:
            return DONE
        try:
            code = self._step(frames)
        except AuthenticationError as error:
            error.attempted = "" if self._mechanism is None else self._mechanism.user[:MAX_NAME]
            error.failure = self._failure
            self._count(self.mechanism_name, self._failure, waker.now_ns() - self._since_ns)
            raise
        if code == DONE:
            self._count(self.mechanism_name, "", waker.now_ns() - self._since_ns)
        return code

    def _step(self, frames: FrameExchange) -> i64:
        if self._pending_auth is not None:
            return self._on_answer(frames, self._pending_auth)
        if self._last is not None and self._mechanism is not None:
            return self._report(frames, self._mechanism, self._last)
        body = frames.receive()
        if body is None:
            return WANT_READ
        try:
            return self._on_frame(frames, body)
        except MalformedError as error:
            raise AuthenticationError(f"{error}, in state {self._state.value}") from None

    def close(self) -> None:
        pending_auth, self._pending_auth = self._pending_auth, None
        if pending_auth is not None:
            pending_auth.cancel()
            self._source.forget(pending_auth)
        self._frames = self._waker = self._mechanism = None

    # Frames.

    def _on_frame(self, frames: FrameExchange, body: bytes) -> i64:
        if self._state is ServerState.OTHER_MECHANISM:
            raise self._refusal("the mechanism is not the one that the connection was made with", "")
        if self._state is ServerState.RAW:
            return self._on_token(frames, body)
        reader = Reader(body)
        header = self._request = messages.read_request_header(reader)
        if self._state is ServerState.AUTHENTICATE:
            return self._on_authenticate(frames, header, reader)
        if header.key == messages.API_VERSIONS:
            return self._on_versions(frames, header, reader)
        if header.key == messages.SASL_HANDSHAKE:
            return self._on_handshake(frames, header, reader)
        hint = "; is this a Kafka client that authenticates with SASL?" if self._state is ServerState.INITIAL else ""
        raise AuthenticationError(f"a request of type {header.key} where SaslHandshake belongs{hint}")

    def _on_versions(self, frames: FrameExchange, header: messages.RequestHeader, reader: Reader) -> i64:
        if self._state is not ServerState.INITIAL:
            raise AuthenticationError(f"ApiVersions a second time, in state {self._state.value}")
        if not header.is_supported:
            self._move(ServerEvent.BAD_VERSIONS)
            return self._send_versions(
                frames, 0, messages.ApiVersionsAnswer(messages.UNSUPPORTED_VERSION, (messages.SUPPORTED[messages.API_VERSIONS],))
            )
        request = messages.ApiVersionsRequest.read(reader, header.version)
        if not request.is_valid(header.version):
            self._move(ServerEvent.BAD_VERSIONS)
            return self._send_versions(frames, header.version, messages.ApiVersionsAnswer(messages.INVALID_REQUEST))
        return self._do(frames, Ask(SupportedApis(header.version)))

    def _send_versions(self, frames: FrameExchange, version: int, answer: messages.ApiVersionsAnswer) -> i64:
        writer = messages.answer_writer(self._request)
        answer.write(writer, version)
        return self._send(frames, writer.message())

    def _on_handshake(self, frames: FrameExchange, header: messages.RequestHeader, reader: Reader) -> i64:
        if not header.is_supported:
            raise AuthenticationError(f"version {header.version} of SaslHandshake")
        name = messages.HandshakeRequest.read(reader).mechanism
        if name not in self._settings.mechanisms:
            self._failure = "mechanism"
            raise AuthenticationError(
                f"Unsupported SASL mechanism {quoted(name)}", answer=self._handshake_answer(messages.UNSUPPORTED_SASL_MECHANISM)
            )
        if self._session is not None and name != self._session.mechanism:
            self._move(ServerEvent.MECHANISM_CHANGED)
        else:
            self._move(ServerEvent.HANDSHAKE_FRAMED if header.version else ServerEvent.HANDSHAKE_RAW)
            self._mechanism = self._make(name)
        self.mechanism_name = name
        return self._send(frames, self._handshake_answer(messages.NONE))

    def _handshake_answer(self, error: int) -> bytes:
        writer = messages.answer_writer(self._request)
        messages.HandshakeAnswer(error, self._settings.mechanisms).write(writer)
        return writer.message()

    def _make(self, name: str) -> ServerMechanism:
        if name in HASHES:
            return ScramServer(name, self._nonce)
        return PlainServer() if name == PLAIN else OAuthBearerServer()

    def _on_authenticate(self, frames: FrameExchange, header: messages.RequestHeader, reader: Reader) -> i64:
        if header.key != messages.SASL_AUTHENTICATE:
            raise self._stray(header.key)
        if not header.is_supported:
            raise AuthenticationError(f"version {header.version} of SaslAuthenticate")
        self.can_reauthenticate = self.can_reauthenticate or header.version > 0
        return self._on_token(frames, messages.TokenRequest.read(reader, header.version).token)

    def _stray(self, key: int) -> AuthenticationError:
        """The error for another request. If the client was refused before (aiokafka ignores that), the log still has the reason."""
        mechanism = self._mechanism
        stray = f"a request of type {key} where SaslAuthenticate belongs"
        if mechanism is None or not mechanism.refused:
            return AuthenticationError(stray)
        self._failure = "credentials"
        return AuthenticationError(f"{self.mechanism_name}: {mechanism.refused}; then {stray}")

    # The mechanism.

    def _on_token(self, frames: FrameExchange, token: bytes) -> i64:
        mechanism = self._mechanism
        assert mechanism is not None, "made with the handshake"
        if len(token) > MAX_MESSAGE:
            raise self._refusal(f"a message of {len(token)} bytes, more than {MAX_MESSAGE}", "")
        try:
            return self._do(frames, mechanism.evaluate(token))
        except RefusalError as error:
            raise self._refusal(str(error), error.told) from None

    def _on_answer(self, frames: FrameExchange, pending_auth: PendingAuth) -> i64:
        answer = pending_auth.answer
        if answer is None:
            return WAIT
        self._pending_auth = None
        self._failure = "unavailable" if isinstance(answer, Unavailable) else PROTOCOL
        mechanism = self._mechanism
        try:
            if mechanism is None:
                return self._on_apis(frames, expect(KnownApis, answer).read())
            return self._do(frames, mechanism.resume(answer))
        except RefusalError as error:
            raise self._refusal(str(error), error.told) from None

    def _on_apis(self, frames: FrameExchange, known: messages.ApiVersionsAnswer) -> i64:
        """Answer with the requests that the upstream understands, and we as well if it matters, and our own versions of the three that we answer."""
        ranges = _narrowed(known.ranges, self._settings)
        merged = {item.key: item for item in ranges} | messages.SUPPORTED
        self._move(ServerEvent.VERSIONS)
        answer = messages.ApiVersionsAnswer(messages.NONE, tuple(merged[key] for key in sorted(merged)), known.tags)
        return self._send_versions(frames, self._request.version, answer)

    def _do(self, frames: FrameExchange, step: Next | None) -> i64:
        if isinstance(step, Ask):
            return self._ask(frames, step)
        assert isinstance(step, Reply), "a server mechanism always replies"
        mechanism = self._mechanism
        assert mechanism is not None, "only a mechanism replies"
        if not mechanism.complete:
            self._move(ServerEvent.TOKEN)
            return self._send(frames, self._token_answer(messages.TokenAnswer(messages.NONE, token=step.token)))
        if self._session is not None and mechanism.principal != self._session.principal:
            raise self._refusal(
                f"the client was {quoted(self._session.principal)} and is {quoted(mechanism.principal)} now",
                "Cannot change principals during re-authentication",
            )
        allowed_principals = self._settings.allowed_principals
        if allowed_principals is not None and not allowed_principals.allows(mechanism.principal):
            self._failure = "denied"
            raise self._refusal(not_allowed_text(mechanism.principal), NOT_ADMITTED)
        self._last = step.token
        return self._report(frames, mechanism, step.token)

    def _report(self, frames: FrameExchange, mechanism: ServerMechanism, last: bytes) -> i64:
        """The client is authenticated: send the result when it may connect."""
        waker = self._waker
        assert waker is not None, "started before it is stepped"
        try:
            if not waker.admits_principal(mechanism.principal):
                return WAIT
        except LoginError as error:
            self._failure = "denied" if error.denied else "unavailable"
            answer = (
                messages.TokenAnswer(messages.SASL_AUTHENTICATION_FAILED, NOT_ADMITTED)
                if error.denied
                else messages.TokenAnswer(messages.UNKNOWN_SERVER_ERROR, CANNOT_LOG_IN)
            )
            raise AuthenticationError(str(error), answer=self._token_answer(answer)) from None
        self._last = None
        self._end(mechanism)
        return self._send(frames, self._token_answer(messages.TokenAnswer(messages.NONE, token=last, lifetime_ms=self.lifetime_ms)))

    def _ask(self, frames: FrameExchange, step: Ask) -> i64:
        waker = self._waker
        assert waker is not None, "started before it is stepped"
        pending_auth = self._pending_auth = PendingAuth(step.auth_request, waker, self._peer)
        self._source.ask(pending_auth)
        return self._on_answer(frames, pending_auth)

    def _end(self, mechanism: ServerMechanism) -> None:
        waker = self._waker
        assert waker is not None, "started before it is stepped"
        bounds = [bound for bound in (mechanism.lifetime_ms, self._settings.max_session_ms or None) if bound is not None]
        if bounds:
            lifetime = min(*bounds, _MAX_LIFETIME_MS)
            self.lifetime_ms = max(lifetime, 0) if self._settings.reauthenticates else 0
            self.expires_ns = max(waker.now_ns() + lifetime * _NS_PER_MS, _ENDED)
        self._move(ServerEvent.PROVED)
        self.principal = mechanism.principal
        if self._identity is not None:
            self._identity.mechanism = self.mechanism_name
        self.complete = self._state is ServerState.COMPLETE

    def _token_answer(self, answer: messages.TokenAnswer) -> bytes:
        if self._request.key != messages.SASL_AUTHENTICATE:  # it speaks in bare tokens
            return answer.token
        writer = messages.answer_writer(self._request)
        answer.write(writer, self._request.version)
        return writer.message()

    def _refusal(self, reason: str, told: str) -> AuthenticationError:
        """The error for a refused client, with an error response if it sends requests; bare tokens have none."""
        if self._failure == PROTOCOL:
            self._failure = "credentials"
        again = "re-authentication" if self._session is not None else "authentication"
        message = told or f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self.mechanism_name}"
        answer = messages.TokenAnswer(messages.SASL_AUTHENTICATION_FAILED, message)
        if self._failure == "unavailable":  # the check was not possible: no failure of the client
            answer = messages.TokenAnswer(messages.UNKNOWN_SERVER_ERROR, CANNOT_TELL)
        return AuthenticationError(f"{self.mechanism_name}: {reason}" if self.mechanism_name else reason, answer=self._token_answer(answer))

    def _send(self, frames: FrameExchange, body: bytes) -> i64:
        sent = frames.send(body)
        if self.complete:
            return DONE
        return WANT_READ if sent else WANT_WRITE

    def _move(self, event: ServerEvent) -> None:
        self._state = next_state(self._state, event)


def _narrowed(ranges: Iterable[messages.ApiRange], settings: SaslServerSettings) -> Iterator[messages.ApiRange]:
    """What is offered of what an upstream understands."""
    for each in ranges:
        known = api(each.key)
        most = each.most if not settings.narrows else -1 if known is None else min(each.most, known.most)
        if settings.greatest is not None:
            most = min(most, settings.greatest(each.key))
        if each.least <= most:
            yield replace(each, most=most)


class SaslServerAuthenticators(AuthenticatorFactory):
    """Makes the authenticators of one listener's clients."""

    def __init__(
        self,
        settings: SaslServerSettings,
        source: CredentialSource,
        nonce: Callable[[], str] = new_nonce,
        count: Count = lambda mechanism, error, duration_ns: None,
    ) -> None:
        self._settings: Final = settings
        self._source: Final = source
        self._nonce: Final = nonce
        self._count: Final = count

    def make(self, identity: Identity) -> SaslServerAuthenticator:
        return SaslServerAuthenticator(self._settings, self._source, nonce=self._nonce, count=self._count, identity=identity, peer=identity.peer)

    def again(self, identity: Identity, principal: str) -> SaslServerAuthenticator | None:
        if not self._settings.reauthenticates:
            return None
        session = Session(principal, identity.mechanism)
        return SaslServerAuthenticator(self._settings, self._source, session=session, nonce=self._nonce, count=self._count, peer=identity.peer)
