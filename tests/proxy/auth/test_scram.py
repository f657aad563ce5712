"""framegate.proxy.auth.scram: the RFCs' examples, both sides, and everything that must not be let in."""

import base64
import hashlib
import hmac

import pytest

from framegate.proxy.auth.auth_requests import ScramCredential, ScramKeys, Unavailable, WantCredential, WantScramKeys
from framegate.proxy.auth.mechanism import Ask, Next, RefusalError, Reply
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512, ScramClient, ScramServer, new_nonce
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import CLIENT_NONCE, ITERATIONS, SALT, SERVER_NONCE, keys, scram_exchange, stored

# RFC 7677, 3.
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def said(step: Next | None) -> bytes:
    assert isinstance(step, Reply)
    return step.token


def server(mechanism: str = SCRAM_SHA_256, first: bytes = CLIENT_FIRST, **extra: object) -> ScramServer:
    """One that has answered the first message."""
    made = ScramServer(mechanism, lambda: SERVER_NONCE)
    step = made.evaluate(first)
    assert isinstance(step, Ask)
    made.resume(stored(mechanism, **extra))
    return made


def client(mechanism: str = SCRAM_SHA_256, user: str = "user") -> ScramClient:
    return ScramClient(mechanism, user, "brokers", lambda: CLIENT_NONCE)


def test_the_example_of_the_rfc() -> None:
    one, other = ScramServer(SCRAM_SHA_256, lambda: SERVER_NONCE), client()
    assert said(other.begin()) == CLIENT_FIRST
    assert one.evaluate(CLIENT_FIRST) == Ask(WantCredential(SCRAM_SHA_256, "user"))
    assert said(one.resume(stored(SCRAM_SHA_256))) == SERVER_FIRST
    auth_request = WantScramKeys("brokers", SCRAM_SHA_256, SALT, ITERATIONS)
    assert other.evaluate(SERVER_FIRST) == Ask(auth_request)
    answer = keys(auth_request)
    assert isinstance(answer, ScramKeys)
    assert said(other.resume(answer)) == CLIENT_FINAL
    assert not one.complete
    assert said(one.evaluate(CLIENT_FINAL)) == SERVER_FINAL
    assert (one.complete, one.principal, one.lifetime_ms) == (True, "user", None)
    assert not other.complete
    assert other.evaluate(SERVER_FINAL) is None
    assert other.complete
    exchange = scram_exchange(SCRAM_SHA_256)
    assert (exchange.client, exchange.server) == ((CLIENT_FIRST, CLIENT_FINAL), (SERVER_FIRST, SERVER_FINAL)), "the fakes compute the same"


def test_the_formulas_are_those_of_rfc_5802(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HASHES, "SCRAM-SHA-1", "sha1")
    one = ScramServer("SCRAM-SHA-1", lambda: "3rfcNHYJY1ZVvWVs7j")
    one.evaluate(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL")
    salt = base64.b64decode("QSXCR+Q6sek8bf92")
    secret = hashlib.pbkdf2_hmac("sha1", b"pencil", salt, 4096)
    stored_key = hashlib.sha1(hmac.digest(secret, b"Client Key", "sha1")).digest()
    one.resume(ScramCredential(salt, 4096, stored_key, hmac.digest(secret, b"Server Key", "sha1")))
    final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert said(one.evaluate(final)) == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="


@each_of("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@each_of("user", ["user", "a b", "a,b=c", "=2C", "Ü"])
def test_both_sides_understand_each_other(mechanism: str, user: str) -> None:
    one, other = ScramServer(mechanism), ScramClient(mechanism, user, "brokers")
    step = one.evaluate(said(other.begin()))
    assert step == Ask(WantCredential(mechanism, user))
    step = other.evaluate(said(one.resume(stored(mechanism, lifetime_ms=9))))
    assert isinstance(step, Ask)
    assert isinstance(step.auth_request, WantScramKeys)
    final = said(other.resume(keys(step.auth_request)))
    other.evaluate(said(one.evaluate(final)))
    assert (one.complete, other.complete, one.principal, one.lifetime_ms) == (True, True, user, 9)


def test_a_nonce_is_new_each_time_and_can_be_said() -> None:
    made = {new_nonce() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(nonce) >= 32 and "," not in nonce and nonce.isascii() for nonce in made)


FINALS = {
    "another nonce": CLIENT_FINAL.replace(b"k0,p", b"k1,p"),
    "a nonce that ends right": CLIENT_FINAL.replace(b"r=rOpr", b"r=xOpr"),
    "the server's half": CLIENT_FINAL.replace(CLIENT_NONCE.encode(), b""),
    "the client's half twice": CLIENT_FINAL.replace(CLIENT_NONCE.encode(), CLIENT_NONCE.encode() * 2),
    "more behind": CLIENT_FINAL.replace(b"k0,p", b"k0k0,p"),
    "bound to a channel": CLIENT_FINAL.replace(b"c=biws", b"c=cD10bHMtdW5pcXVlLCw="),
    "bound otherwise": CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
    "a short proof": CLIENT_FINAL[:-4],
    "an empty proof": CLIENT_FINAL[: CLIENT_FINAL.index(b",p=") + 3],
    "a long proof": CLIENT_FINAL[:-1] + b"A",
    "no proof": CLIENT_FINAL[: CLIENT_FINAL.index(b",p=")],
    "an extension that is not proven": CLIENT_FINAL.replace(b",p=", b",x=y,p="),
    "the first again": CLIENT_FIRST,
}


@each_of("name", FINALS)
def test_a_final_message_that_is_not_the_one(name: str) -> None:
    one = server()
    with pytest.raises(RefusalError) as caught:
        one.evaluate(FINALS[name])
    assert (one.complete, one.principal, caught.value.told) == (False, "", "")
    assert ("librdkafka before 2.6.1" in str(caught.value)) is (name == "the client's half twice")


@each_of("bit", range(0, 256, 5))
def test_every_bit_of_the_proof_counts(bit: int) -> None:
    head, proof = CLIENT_FINAL.split(b",p=")
    changed = bytearray(base64.b64decode(proof))
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RefusalError, match="wrong password"):
        server().evaluate(head + b",p=" + base64.b64encode(changed))


def test_a_wrong_password_an_unknown_user_and_a_failed_check_are_told_the_same() -> None:
    begun = ScramServer(SCRAM_SHA_256, lambda: SERVER_NONCE)
    begun.evaluate(CLIENT_FIRST)
    assert said(begun.resume(stored(SCRAM_SHA_256, is_known=False))) == SERVER_FIRST, "an unknown user gets a salt"
    unchecked = ScramServer(SCRAM_SHA_256)
    unchecked.evaluate(CLIENT_FIRST)
    for refuse, reason in (
        (lambda: server(password="wrong").evaluate(CLIENT_FINAL), "wrong password"),
        (lambda: server(is_known=False).evaluate(CLIENT_FINAL), "no such user"),
        (lambda: server(password="wrong", is_known=False).evaluate(CLIENT_FINAL), "no such user"),
        (lambda: unchecked.resume(Unavailable("queue full")), "cannot be checked: queue full"),
    ):
        with pytest.raises(RefusalError) as caught:
            refuse()
        assert (str(caught.value), caught.value.told) == (reason, "")


def test_an_authorization_id_must_be_the_user() -> None:
    with pytest.raises(RefusalError, match="wants to be 'admin'"):
        ScramServer(SCRAM_SHA_256).evaluate(CLIENT_FIRST.replace(b"n,,", b"n,a=admin,"))
    with pytest.raises(RefusalError, match="another channel"):
        server(first=CLIENT_FIRST.replace(b"n,,", b"n,a=user,")).evaluate(CLIENT_FINAL)


def test_a_delegation_token_is_no_user() -> None:
    assert isinstance(ScramServer(SCRAM_SHA_256).evaluate(CLIENT_FIRST + b",tokenauth=false"), Ask)
    for text in (b"true", b"TRUE"):
        with pytest.raises(RefusalError, match="delegation token"):
            ScramServer(SCRAM_SHA_256).evaluate(CLIENT_FIRST + b",tokenauth=" + text)


@each_of(
    ("first", "words"),
    [
        (SERVER_FIRST.replace(b"r=rOpr", b"r=xOpr"), "does not go on from ours"),
        (SERVER_FIRST.replace(SERVER_NONCE.encode(), b""), "does not go on from ours"),
        (SERVER_FIRST, ""),
        (SERVER_FIRST.replace(b"i=4096", b"i=16384"), ""),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=16385"), "16385 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=2147483647"), "2147483647 iterations"),
        (b"e=unknown-user", "no server-first"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=" + base64.b64encode(b"s" * 1025)), "a salt of 1025 bytes"),
    ],
)
def test_a_client_asks_for_keys_only_of_a_good_server(first: bytes, words: str) -> None:
    one = client()
    one.begin()
    if words:
        with pytest.raises(RefusalError, match=words):
            one.evaluate(first)
    else:
        assert isinstance(one.evaluate(first), Ask)


@each_of(
    ("final", "words"),
    [
        (b"v=" + base64.b64encode(b"\0" * 32), "its signature is wrong"),
        (b"v=", "its signature is wrong"),
        (SERVER_FINAL[:-4], "its signature is wrong"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"", "no server-final"),
    ],
)
def test_a_client_believes_only_who_knows_the_user(final: bytes, words: str) -> None:
    one = client()
    one.begin()
    step = one.evaluate(SERVER_FIRST)
    assert isinstance(step, Ask)
    one.resume(keys(step.auth_request))  # type: ignore[arg-type]
    with pytest.raises(RefusalError, match=words):
        one.evaluate(final)
    assert not one.complete
