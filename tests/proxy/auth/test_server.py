"""framegate.proxy.auth.server: Kafka's exchange with a client, in every order that a client may think of."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.auth import auth_requests as q
from framegate.proxy.auth.allowed_principals import AllowedPrincipals
from framegate.proxy.auth.messages import SUPPORTED, ApiRange, ApiVersionsAnswer, RequestHeader, answer_reader
from framegate.proxy.auth.oauthbearer import MAX_PAIRS
from framegate.proxy.auth.scram import SCRAM_SHA_256, SCRAM_SHA_512
from framegate.proxy.auth.scram_messages import MAX_EXTENSIONS
from framegate.proxy.auth.server import (
    CANNOT_TELL,
    MAX_MESSAGE,
    MECHANISMS,
    SaslServerAuthenticator,
    SaslServerAuthenticators,
    SaslServerSettings,
    Session,
)
from framegate.proxy.auth.wire import MAX_TAGS
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import WAIT
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.transport import DONE, Identity
from tests.fakes.cases import each_of
from tests.fakes.clock import SECOND
from tests.fakes.sasl_frames import (
    SERVER_NONCE,
    compact,
    handshake,
    handshake_answer,
    known_apis,
    plain_token,
    request,
    scram_exchange,
    token,
    token_answer,
    versions,
    versions_answer,
)
from tests.proxy.auth.conftest import AuthSource, Talk

ALL = ("PLAIN", SCRAM_SHA_256, SCRAM_SHA_512, "OAUTHBEARER")
NEUTRAL = "Authentication failed during authentication due to invalid credentials with SASL mechanism "


def talk(
    auth_source: AuthSource,
    *,
    mechanisms: tuple[str, ...] = ALL,
    max_session_ms: int = 0,
    max_frame: int = 524288,
    session: Session | None = None,
    narrows: bool = False,
) -> Talk:
    settings = SaslServerSettings(mechanisms, max_session_ms, max_frame, narrows=narrows)
    return Talk(SaslServerAuthenticator(settings, auth_source, session=session, nonce=lambda: SERVER_NONCE))


@pytest.mark.parametrize("version", range(5))
def test_versions_are_told_and_the_client_goes_on(auth_source: AuthSource, version: int) -> None:
    one = talk(auth_source)
    answer = versions_answer(version, ApiRange(0, 3, 11), *(() if version >= 3 else (ApiRange(17, 0, 1), ApiRange(18, 0, 4), ApiRange(36, 0, 2))))
    assert one.say(versions(version)) == [answer]
    assert one.say(handshake("PLAIN"), token(plain_token())) == [handshake_answer(*ALL), token_answer()]
    assert (one.code, one.one.principal, one.one.expires_ns) == (DONE, "user", NEVER)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_without_versions_and_with_each_version_of_the_tokens(auth_source: AuthSource, version: int) -> None:
    one = talk(auth_source)
    assert one.say(handshake("PLAIN", 5), token(plain_token(), 6, version)) == [
        handshake_answer(*ALL, correlation=5),
        token_answer(version=version, correlation=6),
    ]
    assert one.one.complete
    assert one.one.can_reauthenticate is (version > 0)  # type: ignore[attr-defined]
    assert talk(auth_source).say(handshake("PLAIN", version=0), plain_token()) == [handshake_answer(*ALL), b""], "bare, and sent although it is empty"


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("bare", [False, True])
def test_scram_in_requests_and_in_bare_tokens(auth_source: AuthSource, mechanism: str, bare: bool) -> None:
    exchange = scram_exchange(mechanism)
    one = talk(auth_source)
    assert one.say(handshake(mechanism, version=0 if bare else 1)) == [handshake_answer(*ALL)]
    first, final = (part if bare else token(part) for part in exchange.client)
    assert one.say(first) == [exchange.server[0] if bare else token_answer(exchange.server[0])]
    assert one.say(final) == [exchange.server[1] if bare else token_answer(exchange.server[1])]
    assert (one.one.complete, one.one.principal) == (True, "user")


# Versions.


def test_a_version_that_nobody_knows_is_answered_in_the_oldest_form_and_may_be_asked_again(auth_source: AuthSource) -> None:
    one = talk(auth_source)
    for version in (5, 99, 32767):
        assert one.say(request(18, version, 9, b"whatever")) == [struct.pack(">ihihhh", 9, 35, 1, 18, 0, 4)]
    assert one.say(versions(3)) == [versions_answer(3, ApiRange(0, 3, 11))]
    assert one.say(handshake("PLAIN"), token(plain_token()))
    assert one.one.complete


def test_a_blank_name_is_invalid_and_may_be_said_again(auth_source: AuthSource) -> None:
    one = talk(auth_source)
    assert one.say(versions(3, name="")) == [struct.pack(">ih", 7, 42) + b"\1" + struct.pack(">i", 0) + b"\0"]
    assert auth_source.asked == []
    assert one.say(versions(3)) == [versions_answer(3, ApiRange(0, 3, 11))]


@pytest.mark.parametrize("before", [(versions(3),), (handshake("PLAIN"),), (handshake("PLAIN", version=0),)])
def test_versions_may_be_asked_for_once_and_before_the_handshake(auth_source: AuthSource, before: tuple[bytes, ...]) -> None:
    one = talk(auth_source)
    one.say(*before)
    assert one.refused(versions(3)).answer == b""


def test_versions_of_the_requests_that_framegate_answers_are_its_own(auth_source: AuthSource) -> None:
    auth_source.answer = lambda auth_request: known_apis(ApiRange(36, 0, 9), ApiRange(3, 0, 12), ApiRange(1, 4, 17))
    assert talk(auth_source).say(versions(3)) == [versions_answer(3, ApiRange(1, 4, 17), ApiRange(3, 0, 12))]


def test_a_listener_that_replaces_addresses_tells_only_what_framegate_can_read(auth_source: AuthSource) -> None:
    auth_source.answer = lambda auth_request: known_apis(
        ApiRange(1, 4, 99), ApiRange(3, 0, 12), ApiRange(55, 0, 2), ApiRange(3000, 0, 0), ApiRange(0, 50, 60)
    )
    told = talk(auth_source, narrows=True).say(versions(3))
    assert told == [versions_answer(3, ApiRange(1, 4, 18), ApiRange(3, 0, 12), ApiRange(55, 0, 1))]


@pytest.mark.parametrize("version", range(5))
def test_what_the_broker_says_besides_is_told_in_the_versions_that_have_it(auth_source: AuthSource, version: int) -> None:
    features = ((0, b"supported"), (1, bytes(8)), (2, b"finalized"), (9, b"later"))
    known = (ApiRange(3, 0, 12, ((6, b"of Metadata"),)), ApiRange(36, 0, 9, ((6, b"not of ours"),)))
    auth_source.answer = lambda auth_request: known_apis(*known, tags=features)
    [said] = talk(auth_source).say(versions(version))
    answer = ApiVersionsAnswer.read(answer_reader(said, RequestHeader(18, version, 7)), version)
    assert answer.tags == (features if version >= 3 else ())
    assert answer.ranges == (ApiRange(3, 0, 12, known[0].tags if version >= 3 else ()), *(SUPPORTED[key] for key in (17, 18, 36)))
    assert auth_source.asked == [q.SupportedApis(version)]


def test_without_known_versions_no_answer_is_sent(auth_source: AuthSource) -> None:
    auth_source.answer = lambda auth_request: q.Unavailable("the link is down")
    error = talk(auth_source).refused(versions(3))
    assert (error.answer, str(error)) == (b"", "cannot be checked: the link is down")


# What is refused.


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are_and_is_the_end(auth_source: AuthSource) -> None:
    one = talk(auth_source, mechanisms=("PLAIN", SCRAM_SHA_256))
    error = one.refused(handshake("GSSAPI"))
    assert error.answer == handshake_answer("PLAIN", SCRAM_SHA_256, error=33)
    assert "Unsupported SASL mechanism 'GSSAPI'" in str(error)
    assert one.heard() == [], "the answer waits for the delay"


@pytest.mark.parametrize("key", [0, 3, 37, 99, -5, 20304])
@pytest.mark.parametrize("before", [(), (versions(3),)])
def test_any_other_request_is_refused_by_its_header(auth_source: AuthSource, key: int, before: tuple[bytes, ...]) -> None:
    one = talk(auth_source)
    one.say(*before)
    error = one.refused(struct.pack(">hhi", key, 0, 1) + b"\x7f\xffthe rest is not looked at")
    assert (error.answer, f"type {key} " in str(error)) == (b"", True)
    assert ("Kafka client" in str(error)) is (not before)


@each_of(
    ("before", "body"),
    [
        ((), b""),
        ((), b"\0"),
        ((), b"\0\x11\0\1"),
        ((), b"\x60\x82\x01\x02gssapi of old"),
        ((), handshake("PLAIN")[:-1]),
        ((), handshake("PLAIN") + b"x"),
        ((), handshake("PLAIN", version=2)),
        ((), token(plain_token())),
        ((), request(36, 3, 1, b"\0", flexible=True)),
        ((), request(0, 0, 1, b"")),
        ((handshake("PLAIN"),), request(36, 3, 1, b"\0", flexible=True)),
        ((handshake("PLAIN"),), request(36, 1, 7, b"\x7f\xff\xff\xff")),
        ((handshake("PLAIN"),), request(3, 1, 1, b"")),
        ((handshake("PLAIN"),), handshake("PLAIN")),
        ((handshake("PLAIN"),), b"\xff"),
        ((handshake("PLAIN"),), b""),
    ],
    fresh={"auth_source": AuthSource},
)
def test_what_is_no_request_is_refused(auth_source: AuthSource, before: tuple[bytes, ...], body: bytes) -> None:
    one = talk(auth_source)
    one.say(*before)
    assert one.refused(body).answer == b""
    assert auth_source.asked == []


@pytest.mark.parametrize("before", [(), (handshake("PLAIN"),), (handshake("PLAIN", version=0),)])
def test_the_bound_of_a_frame_holds_in_every_phase(auth_source: AuthSource, before: tuple[bytes, ...]) -> None:
    one = talk(auth_source, max_frame=100)
    one.say(*before)
    one.peer.write(struct.pack(">i", 101))
    with pytest.raises(AuthenticationError, match="frame of 101 bytes"):
        one.one.step()


def fail(auth_source: AuthSource, mechanism: str, *tokens: bytes, **extra: object) -> AuthenticationError:
    one = talk(auth_source, **extra)  # type: ignore[arg-type]
    one.say(handshake(mechanism))
    one.say(*(token(part) for part in tokens[:-1]))
    return one.refused(token(tokens[-1], 8))


def told(text: str) -> bytes:
    return token_answer(error=58, message=text, correlation=8)


def test_what_clients_of_plain_are_told(auth_source: AuthSource) -> None:
    wrong = "Authentication failed: Invalid username or password"
    for text, said in (
        (plain_token("wrong"), wrong),
        (plain_token(user="nobody"), wrong),
        (b"\0\0p", "Authentication failed: username not specified"),
        (b"a\0b", NEUTRAL + "PLAIN"),
    ):
        assert fail(auth_source, "PLAIN", text).answer == told(said)


def test_what_clients_of_scram_are_told_tells_nothing(auth_source: AuthSource) -> None:
    exchange = scram_exchange(SCRAM_SHA_256)
    unknown = scram_exchange(SCRAM_SHA_256, "nobody")
    answers = {
        fail(auth_source, SCRAM_SHA_256, exchange.client[0], exchange.client[1][:-8] + b"AAAAAAA=").answer,
        fail(auth_source, SCRAM_SHA_256, *unknown.client).answer,
        fail(auth_source, SCRAM_SHA_256, b"no message of SCRAM").answer,
        fail(auth_source, SCRAM_SHA_256, exchange.client[0], exchange.client[1].replace(b"r=rO", b"r=x")).answer,
    }
    assert answers == {told(NEUTRAL + SCRAM_SHA_256)}


def test_what_clients_of_oauthbearer_are_told(auth_source: AuthSource) -> None:
    bad = b"n,,\x01auth=Bearer bad\x01\x01"
    one = talk(auth_source)
    assert one.say(handshake("OAUTHBEARER"), token(bad))[1] == token_answer(b'{"status": "invalid_token"}')
    assert one.refused(token(b"\x01", 8)).answer == told('{"status": "invalid_token"}')


def test_the_log_has_the_reason_for_clients_that_ignore_a_refused_token(auth_source: AuthSource) -> None:
    """aiokafka takes the refusal for a welcome, and asks on."""
    counted: list[tuple[str, str, int]] = []
    factory = SaslServerAuthenticators(SaslServerSettings(("OAUTHBEARER",)), auth_source, count=lambda *what: counted.append(what))
    one = Talk(factory.make(Identity()))
    one.say(handshake("OAUTHBEARER"), token(b"n,,\x01auth=Bearer bad\x01\x01"))
    refused = one.refused(request(3, 9, 1, b""))
    assert str(refused) == "OAUTHBEARER: bad token; then a request of type 3 where SaslAuthenticate belongs"
    assert (refused.answer, counted) == (b"", [("OAUTHBEARER", "credentials", 0)])


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM_SHA_256, "OAUTHBEARER"])
def test_an_internal_failure_has_its_reason_in_the_log_only(auth_source: AuthSource, mechanism: str) -> None:
    auth_source.answer = lambda auth_request: q.Unavailable("/etc/framegate/users cannot be read")
    first = {"PLAIN": plain_token(), "OAUTHBEARER": b"n,,\x01auth=Bearer good\x01\x01"}.get(mechanism, scram_exchange(SCRAM_SHA_256).client[0])
    error = fail(auth_source, mechanism, first)
    assert error.answer == token_answer(error=-1, message=CANNOT_TELL, correlation=8), "no client takes that for final"
    assert "/etc/framegate/users" in str(error)


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM_SHA_256])
def test_a_client_with_bare_tokens_gets_no_reason(auth_source: AuthSource, mechanism: str) -> None:
    one = talk(auth_source)
    one.say(handshake(mechanism, version=0))
    assert one.refused(b"a").answer == b""


def test_no_error_holds_a_password(auth_source: AuthSource) -> None:
    for text in (plain_token("canary"), b"canary\0canary", b"\0u\0canary\0", b"\xffcanary"):
        error = fail(auth_source, "PLAIN", text)
        assert "canary" not in str(error) + repr(error)
        assert b"canary" not in error.answer


# Who has to be asked.


def test_nothing_is_read_while_a_request_is_open(auth_source: AuthSource) -> None:
    auth_source.late = True
    one = talk(auth_source)
    assert one.say(versions(3), handshake("PLAIN"), token(plain_token())) == []
    assert one.code == WAIT
    for _ in range(3):
        assert one.say() == []
    assert one.frames.received == 1
    auth_source.settle()
    assert one.alarm.woken == 1
    assert one.say() == [versions_answer(3, ApiRange(0, 3, 11)), handshake_answer(*ALL)]
    assert (one.code, one.one.complete) == (WAIT, False)
    auth_source.settle()
    assert one.say() == [token_answer()]
    assert one.code == DONE
    assert auth_source.asked == [q.SupportedApis(3), q.CheckPassword("user", "pencil")]


@pytest.mark.parametrize("frames", [1, 2])
def test_an_authenticator_that_is_closed_cancels_its_request(auth_source: AuthSource, frames: int) -> None:
    auth_source.late = True
    one = talk(auth_source)
    one.say(*(versions(3),) if frames == 1 else (handshake("PLAIN"), token(plain_token())))
    pending_auth = auth_source.open[0]
    one.one.close()
    one.one.close()
    assert (auth_source.forgotten, pending_auth.is_cancelled) == ([pending_auth], True)
    pending_auth.complete(q.Accepted("user"))
    assert (one.alarm.woken, one.one.complete) == (0, False)


# How long it is good.


@pytest.mark.parametrize(
    ("lifetime", "most", "told_ms", "ends"),
    [
        (None, 0, 0, None),
        (None, 5000, 5000, 5000),
        (3000, 0, 3000, 3000),
        (3000, 5000, 3000, 3000),
        (9000, 5000, 5000, 5000),
        (0, 0, 0, 0),
        (-7, 5000, 0, -7),
        (-10_000_000, 0, 0, -1_000_000),
        (1 << 62, 0, 1 << 40, 1 << 40),
    ],
)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_lesser_lifetime_is_told_and_ends_whatever_was_told(
    auth_source: AuthSource, lifetime: int | None, most: int, told_ms: int, ends: int | None, version: int
) -> None:
    auth_source.answer = lambda auth_request: q.Accepted("user", lifetime)
    one = talk(auth_source, max_session_ms=most)
    assert one.say(handshake("PLAIN"), token(plain_token(), version=version))[1] == token_answer(lifetime=told_ms, version=version)
    expected = NEVER if ends is None else max(1000 * SECOND + ends * 1_000_000, 1)
    assert one.one.expires_ns == expected


def test_scrams_lifetime_is_told_at_its_end_only(auth_source: AuthSource) -> None:
    exchange = scram_exchange(SCRAM_SHA_256)
    one = talk(auth_source, max_session_ms=9000)
    answers = one.say(handshake(SCRAM_SHA_256), *(token(part) for part in exchange.client))
    assert answers[1:] == [token_answer(exchange.server[0]), token_answer(exchange.server[1], lifetime=9000)]


# Once more.


def test_an_authenticated_client_may_authenticate_again_as_the_same_user_with_the_same_mechanism(auth_source: AuthSource) -> None:
    known = Session("user", "PLAIN")
    one = talk(auth_source, session=known, max_session_ms=5000)
    assert one.say(handshake("PLAIN"), token(plain_token())) == [handshake_answer(*ALL), token_answer(lifetime=5000)]
    assert one.one.principal == "user"
    one = talk(auth_source, session=known)
    assert one.say(handshake(SCRAM_SHA_256)) == [handshake_answer(*ALL)]
    assert "not the one" in str(one.refused(token(scram_exchange(SCRAM_SHA_256).client[0])))
    assert talk(auth_source, session=known).refused(versions(3)).answer == b""
    error = fail(auth_source, "PLAIN", b"no", session=known)
    assert error.answer == told(NEUTRAL.replace("during authentication", "during re-authentication") + "PLAIN")
    auth_source.answer = lambda auth_request: q.Accepted("other")
    error = fail(auth_source, "PLAIN", plain_token(user="other"), session=known)
    assert "was 'user' and is 'other'" in str(error)
    assert error.answer == told("Cannot change principals during re-authentication")


# Anything.

FRAMES = [
    versions(0),
    versions(3),
    versions(3, name=""),
    request(18, 99, 1, b""),
    handshake("PLAIN"),
    handshake("PLAIN", version=0),
    handshake(SCRAM_SHA_256),
    handshake("x"),
    token(plain_token()),
    token(plain_token("wrong")),
    token(scram_exchange(SCRAM_SHA_256).client[0]),
    token(scram_exchange(SCRAM_SHA_256).client[1]),
    plain_token(),
    request(3, 1, 1, b""),
    b"",
    b"\0\x24",
    request(36, 2, 1, compact(b"x" * 300) + b"\0", flexible=True),
]


@given(st.lists(st.sampled_from(FRAMES), max_size=8), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_frames_only_a_proof_gives_a_principal(sent: list[bytes], late: bool) -> None:
    auth_source = AuthSource()
    auth_source.late = late
    one = talk(auth_source)
    try:
        for body in sent:
            if one.one.complete:
                break
            one.say(body)
            auth_source.settle()
            one.say()
    except AuthenticationError:
        assert not one.one.complete
    proved = any(isinstance(auth_request, q.CheckPassword | q.WantCredential) for auth_request in auth_source.asked)
    assert (one.one.principal == "user") is one.one.complete
    assert proved or not one.one.complete
    one.one.close()


def of_clients(auth_source: AuthSource, counted: list[tuple[str, str, int]], **settings: object) -> SaslServerAuthenticators:
    """The factory of a listener with sessions of a minute, which counts."""
    made = SaslServerSettings(("PLAIN", SCRAM_SHA_256), 60_000, **settings)  # type: ignore[arg-type]
    return SaslServerAuthenticators(made, auth_source, lambda: SERVER_NONCE, lambda *what: counted.append(what))


@pytest.mark.parametrize(
    ("bodies", "answer", "counted"),
    [
        ([handshake("PLAIN"), token(plain_token())], None, ("PLAIN", "")),
        ([handshake("PLAIN"), token(plain_token("wrong"))], None, ("PLAIN", "credentials")),
        ([handshake("PLAIN"), token(plain_token(""))], None, ("PLAIN", "credentials")),
        ([handshake("PLAIN"), token(plain_token())], q.Unavailable("full"), ("PLAIN", "unavailable")),
        ([versions(3)], q.Unavailable("not known"), ("", "unavailable")),
        ([handshake("OAUTHBEARER")], None, ("", "mechanism")),
        ([handshake("PLAIN"), request(3, 9, 1, b"")], None, ("PLAIN", "protocol")),
        ([request(3, 9, 1, b"")], None, ("", "protocol")),
        ([b"x"], None, ("", "protocol")),
    ],
)
def test_the_result_of_a_login_is_counted_once(
    auth_source: AuthSource, bodies: list[bytes], answer: q.AuthResponse | None, counted: tuple[str, str]
) -> None:
    found: list[tuple[str, str, int]] = []
    if answer is not None:
        auth_source.answer = lambda auth_request: answer
    one = Talk(of_clients(auth_source, found).make(Identity()))
    one.alarm.clock.advance_ms(7)
    if counted[1]:
        one.refused(*bodies)
    else:
        one.say(*bodies)
        assert one.one.step() == DONE
    assert found == [(*counted, 7_000_000)], "from its start on"


@each_of(
    ("entries", "allowed"),
    [(["user"], True), (["RULE:us.."], True), (["other", "RULE:.*"], True), (["other"], False), (["RULE:use"], False), (["User"], False)],
    fresh={"auth_source": AuthSource},
)
def test_a_client_is_told_that_its_principal_is_not_allowed_after_its_proof_only(auth_source: AuthSource, entries: list[str], allowed: bool) -> None:
    found: list[tuple[str, str, int]] = []
    factory = of_clients(auth_source, found, allowed_principals=AllowedPrincipals(entries))
    one = Talk(factory.make(Identity()))
    if allowed:
        assert one.say(handshake("PLAIN"), token(plain_token()))[1] == token_answer(lifetime=60_000)
        assert (one.one.principal, found) == ("user", [("PLAIN", "", 0)])
        return
    error = one.refused(handshake("PLAIN"), token(plain_token()))
    assert str(error) == "PLAIN: the principal 'user' is none of allowed_principals"
    assert error.answer == token_answer(error=58, message="Authentication failed: the principal is not allowed to connect")
    assert (one.one.complete, one.one.principal, found) == (False, "", [("PLAIN", "denied", 0)])
    refusal = Talk(factory.make(Identity())).refused(handshake("PLAIN"), token(plain_token("wrong")))
    assert b"not allowed" not in refusal.answer, "only a client that proved its principal is told"


@pytest.mark.parametrize(("size", "words"), [(MAX_MESSAGE, "PLAIN: "), (MAX_MESSAGE + 1, f"a message of {MAX_MESSAGE + 1} bytes")])
def test_a_message_above_the_limit_counts_as_wrong_credentials(auth_source: AuthSource, size: int, words: str) -> None:
    found: list[tuple[str, str, int]] = []
    one = Talk(of_clients(auth_source, found).make(Identity()))
    assert words in str(one.refused(handshake("PLAIN"), token(b"\0user\0" + b"p" * (size - 6), version=1)))
    assert found == [("PLAIN", "credentials", 0)]


@pytest.mark.parametrize("first", [b"n,a=" + b"\x01" * 60_000 + b",n=user,r=xyz", b"n,a=user,n=" + b"u" * 60_000 + b",r=x"])
def test_texts_of_unauthenticated_clients_are_cut_in_errors(auth_source: AuthSource, first: bytes) -> None:
    error = Talk(of_clients(auth_source, []).make(Identity())).refused(handshake(SCRAM_SHA_256), token(first, version=1))
    assert "wants to be" in str(error)
    assert len(str(error)) < 1000


def tagged(count: int) -> bytes:
    """ApiVersions with so many tagged fields."""
    varint = bytes((count,)) if count < 128 else bytes((count & 0x7F | 0x80, count >> 7))
    tags = b"".join((bytes((tag,)) if tag < 128 else bytes((tag & 0x7F | 0x80, tag >> 7))) + b"\0" for tag in range(count))
    return versions(3)[:-1] + varint + tags


@each_of(
    ("bodies", "words"),
    [
        ((tagged(MAX_TAGS),), ""),
        ((tagged(MAX_TAGS + 1),), "129 tagged fields"),
        ((handshake(SCRAM_SHA_256), token(b"n,,n=user,r=xyz" + b",a=b" * MAX_EXTENSIONS, version=1)), ""),
        ((handshake(SCRAM_SHA_256), token(b"n,,n=user,r=xyz" + b",a=b" * (MAX_EXTENSIONS + 1), version=1)), "129 extensions"),
        ((handshake("OAUTHBEARER"), token(b"n,,\1auth=Bearer good\1" + b"a=b\1" * (MAX_PAIRS + 1) + b"\1", version=1)), "130 pairs"),
    ],
    fresh={"auth_source": AuthSource},
)
def test_messages_of_unauthenticated_clients_have_few_fields(auth_source: AuthSource, bodies: tuple[bytes, ...], words: str) -> None:
    one = Talk(SaslServerAuthenticators(SaslServerSettings(MECHANISMS), auth_source).make(Identity()))
    if words:
        assert words in str(one.refused(*bodies))
    else:
        assert len(one.say(*bodies)) == len(bodies)


def test_the_factory_remembers_the_mechanism_for_the_next_authentication(auth_source: AuthSource) -> None:
    found: list[tuple[str, str, int]] = []
    factory, identity = of_clients(auth_source, found), Identity()
    one = Talk(factory.make(identity))
    one.say(handshake("PLAIN"), token(plain_token()))
    assert identity.mechanism == "PLAIN"
    again = factory.again(identity, one.one.principal)
    assert again is not None
    assert Talk(again).say(handshake("PLAIN"), token(plain_token()))[1] == token_answer(lifetime=60_000)
    other = factory.again(identity, one.one.principal)
    assert other is not None
    assert "not the one that the connection was made with" in str(Talk(other).refused(handshake(SCRAM_SHA_256), token(b"")))
    assert found == [("PLAIN", "", 0), ("PLAIN", "", 0), (SCRAM_SHA_256, "credentials", 0)]


def test_clients_that_cannot_authenticate_again_are_not_told_the_lifetime(auth_source: AuthSource) -> None:
    factory, identity = of_clients(auth_source, [], reauthenticates=False), Identity()
    one = Talk(factory.make(identity))
    assert one.say(handshake("PLAIN"), token(plain_token()))[1] == token_answer(lifetime=0)
    assert one.one.expires_ns == one.alarm.clock.now + 60 * SECOND
    assert factory.again(identity, "user") is None
