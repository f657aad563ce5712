"""framegate.control.identity.tokens: what is let in, and everything that tries."""

import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.control.identity.jwks import parse_jwks
from framegate.control.identity.tokens import MAX_TOKEN, TokenRules, Tokens
from framegate.proxy.auth.auth_requests import Accepted, Refused
from tests.control.identity.conftest import NOW, RULES, Signer, b64

EVERY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEYS = {"RS": "rsa", "PS": "rsa", "ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed25519"}


def rules(**changed: Any) -> TokenRules:
    return TokenRules("https://issuer", "framegate", **changed)


def why(signer: Signer, token: str, use: TokenRules = RULES, now: float = NOW) -> str:
    found = signer.tokens(use).check(token, now)
    assert isinstance(found, Refused)
    assert token not in found.reason
    return found.reason


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_good_token_of_each_algorithm(signer: Signer, algorithm: str) -> None:
    name = KEYS.get(algorithm) or KEYS[algorithm[:2]]
    tokens = signer.tokens(rules(algorithms=(algorithm,)))
    assert tokens.check(signer.token(name, algorithm), NOW) == Accepted("alice", 90_000)
    others = tuple(item for item in EVERY if item != algorithm)
    assert "not allowed" in why(signer, signer.token(name, algorithm), rules(algorithms=others))


def test_ed448_is_eddsa_too(signer: Signer) -> None:
    assert signer.tokens().check(signer.token("ed448", "EdDSA"), NOW) == Accepted("alice", 90_000)


# Who signed it.


def unsigned(header: dict[str, Any], signature: bytes = b"", **claims: Any) -> str:
    usual = {"iss": "https://issuer", "aud": "framegate", "sub": "alice", "exp": NOW + 60, **claims}
    return ".".join((b64(json.dumps(header).encode()), b64(json.dumps(usual).encode()), b64(signature)))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "HS256", "RS257", None, 1, ["RS256"], {}])
@pytest.mark.parametrize("signature", [b"", b"x" * 256])
def test_none_and_what_nobody_allowed(signer: Signer, name: Any, signature: bytes) -> None:
    assert why(signer, unsigned({"alg": name, "kid": "rsa"}, signature))


def test_a_token_without_an_algorithm(signer: Signer) -> None:
    assert why(signer, unsigned({"kid": "rsa"}))


@pytest.mark.parametrize("kind", ["pem", "jwk", "n"])
def test_a_public_key_is_no_secret(signer: Signer, kind: str) -> None:
    secret = {"pem": signer.pem("rsa"), "jwk": json.dumps(signer.jwk("rsa")).encode(), "n": signer.jwk("rsa")["n"].encode()}[kind]
    head = unsigned({"alg": "HS256", "kid": "rsa", "typ": "JWT"}).rpartition(".")[0]
    forged = f"{head}.{b64(hmac.digest(secret, head.encode(), hashlib.sha256))}"
    assert "not allowed" in why(signer, forged)
    with pytest.raises(ValueError, match="no algorithm for tokens: HS256"):
        rules(algorithms=("RS256", "HS256"))


def test_the_algorithms_cannot_be_none_or_empty() -> None:
    for names in (("none",), ()):
        with pytest.raises(ValueError, match="no algorithm for tokens"):
            rules(algorithms=names)


def test_a_key_is_used_for_its_own_algorithm_only(signer: Signer) -> None:
    everything = rules(algorithms=EVERY)
    assert "no key 'p256' for RS256" in why(signer, signer.token("rsa", "RS256", {"kid": "p256"}), everything)
    assert "no key 'p384' for ES256" in why(signer, signer.token("p256", "ES256", {"kid": "p384"}), everything)
    only = parse_jwks(json.dumps({"keys": [signer.jwk("rsa", alg="PS256")]}).encode())
    found = Tokens(everything, only).check(signer.token("rsa", "RS256"), NOW)
    assert isinstance(found, Refused)


def test_another_key_of_the_same_kind_is_not_the_one(signer: Signer) -> None:
    stranger = Signer()
    assert why(signer, stranger.token()) == "token: its signature is wrong"
    assert "no key 'other' for RS256" in why(signer, signer.token(headers={"kid": "other"}))


def test_a_key_that_the_token_brings_is_not_believed(signer: Signer) -> None:
    stranger = Signer()
    for header in ({"jwk": stranger.jwk("rsa")}, {"jku": "https://evil/keys"}, {"x5c": ["x"]}):
        assert why(signer, stranger.token(headers={"kid": "rsa", **header})) == "token: its signature is wrong"


def test_a_token_that_names_no_key(signer: Signer) -> None:
    one = Tokens(RULES, parse_jwks(json.dumps({"keys": [signer.jwk("rsa"), signer.jwk("p256")]}).encode()))
    assert one.check(signer.token(headers={}), NOW) == Accepted("alice", 90_000)
    two = Tokens(RULES, parse_jwks(json.dumps({"keys": [signer.jwk("rsa"), Signer().jwk("rsa", kid="b")]}).encode()))
    assert two.check(signer.token(headers={}), NOW) == Refused("token: names no key, and 2 fit RS256")


def test_what_is_critical_is_understood_or_refused(signer: Signer) -> None:
    for critical in (["exp"], ["x"], [], "exp"):
        assert why(signer, signer.token(headers={"kid": "rsa", "crit": critical, "x": 1, "exp": 1})) == "token: not a signed token"


def test_every_byte_counts(signer: Signer) -> None:
    token = signer.token("p256", "ES256")
    for index in range(0, len(token), 3):
        changed = "A" if token[index] != "A" else "Q"
        forged = token[:index] + changed + token[index + 1 :]
        assert isinstance(signer.tokens().check(forged, NOW), Refused) or index == len(token) - 1


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "a.b", "e30.e30.", "ü.ü.ü", "\0", "e30." * 3, "[" * 20000, b64(b"[" * 20000) + ".e30.e30"])
def test_what_is_no_token(signer: Signer, token: str) -> None:
    assert isinstance(signer.tokens().check(token, NOW), Refused)


def test_a_large_one_is_not_looked_at(signer: Signer) -> None:
    assert f"more than {MAX_TOKEN} bytes" in why(signer, "a" * (MAX_TOKEN + 1))


@given(st.text(max_size=40))
def test_garbage_is_refused(text: str) -> None:
    assert isinstance(Tokens(RULES, ()).check(text, NOW), Refused)


# What it says.


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://other"}, "of the issuer 'https://other'"),
        ({"iss": None}, "of the issuer None"),
        ({"iss": "https://issuer/"}, "of the issuer"),
        ({"aud": "other"}, "for the audience 'other'"),
        ({"aud": None}, "for the audience None"),
        ({"aud": []}, "for the audience []"),
        ({"aud": ["other", "framegate2"]}, "for the audience"),
        ({"exp": None}, "no exp"),
        ({"exp": NOW - 30}, "expired 30 s ago"),
        ({"exp": NOW - 9999}, "expired 9999 s ago"),
        ({"exp": "soon"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": float("inf")}, ""),
        ({"nbf": NOW + 31}, "good in 31 s only (nbf)"),
        ({"iat": NOW + 31}, "good in 31 s only (iat)"),
        ({"nbf": "now"}, "nbf is no time"),
        ({"sub": None}, "no text in its sub"),
        ({"sub": ""}, "no text in its sub"),
        ({"sub": "a\nb"}, "no text in its sub"),
    ],
)
def test_what_is_not_for_us_or_not_now(signer: Signer, claims: dict[str, Any], words: str) -> None:
    assert words in why(signer, signer.token(**claims))


@pytest.mark.parametrize(
    ("claims", "left"),
    [
        ({"exp": NOW - 29}, 1000),
        ({"exp": NOW + 0.5}, 30_500),
        ({"exp": 10**14}, 10**12),
        ({"nbf": NOW + 30}, 90_000),
        ({"aud": ["other", "framegate"]}, 90_000),
        ({"iat": NOW - 10**6}, 90_000),
    ],
)
def test_what_is_good_and_for_how_long(signer: Signer, claims: dict[str, Any], left: int) -> None:
    assert signer.tokens().check(signer.token(**claims), NOW) == Accepted("alice", left)


def test_without_skew_it_ends_on_its_second(signer: Signer) -> None:
    tokens = signer.tokens(rules(clock_skew_s=0))
    assert tokens.check(signer.token(exp=NOW + 1), NOW) == Accepted("alice", 1000)
    assert isinstance(tokens.check(signer.token(exp=NOW), NOW), Refused)


@pytest.mark.parametrize("scope", ["read write more", ["write", "read"]])
def test_all_scopes_are_needed(signer: Signer, scope: Any) -> None:
    needed = rules(scopes=("read", "write"))
    assert signer.tokens(needed).check(signer.token(scope=scope), NOW) == Accepted("alice", 90_000)
    for lacking in ("read", ["read", 7], None, "readwrite", 7):
        found = signer.tokens(needed).check(signer.token(scope=lacking), NOW)
        assert found == Refused(
            "token: lacks the scope read write" if lacking in (None, "readwrite", 7) else "token: lacks the scope write", "read write"
        )


def test_other_claims_may_hold_the_name_and_the_scopes(signer: Signer) -> None:
    use = rules(principal_claim="client_id", scope_claim="scp", scopes=("a",))
    assert signer.tokens(use).check(signer.token(client_id="c", scp=["a"]), NOW) == Accepted("c", 90_000)


def test_tokens_of_anybody_are_not_configured() -> None:
    for issuer, audience in (("", "a"), ("a", "")):
        with pytest.raises(ValueError, match="nobody's"):
            TokenRules(issuer, audience)
