"""framegate.control.identity.jwks: which keys are taken."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt import get_algorithm_by_name

from framegate.control.identity.jwks import JwksError, parse_jwks, read_jwks
from tests.control.identity.conftest import Signer
from tests.fakes.cases import each_of


def parse(*keys: Any) -> list[Any]:
    return parse_jwks(json.dumps({"keys": keys}).encode())


def test_each_kind_has_its_algorithms(signer: Signer) -> None:
    found = {key.key_id: key.algorithms for key in parse_jwks(signer.jwks())}
    assert found == {
        "rsa": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        "p256": ("ES256",),
        "p384": ("ES384",),
        "p521": ("ES512",),
        "ed25519": ("EdDSA",),
        "ed448": ("EdDSA",),
    }
    (only,) = parse(signer.jwk("rsa", alg="PS384"))
    assert only.algorithms == ("PS384",)


def test_what_nobody_knows_and_what_encrypts_is_passed_over(signer: Signer) -> None:
    good = signer.jwk("p256")
    others = ({"kty": "XYZ"}, signer.jwk("rsa", use="enc"), signer.jwk("p384", key_ops=["encrypt"]), {"kty": "OKP", "crv": "X25519", "x": "AA"}, {})
    (found,) = parse(good, *others)
    assert found.key_id == "p256"
    assert parse(signer.jwk("rsa", use="sig", key_ops=["verify"]))


def private_jwk(signer: Signer) -> dict[str, Any]:
    return dict(json.loads(get_algorithm_by_name("RS256").to_jwk(signer.private["rsa"])))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda signer: {"kty": "oct", "k": "c2VjcmV0"}, "key 1: is a shared secret"),
        (lambda signer: signer.jwk("rsa", k="c2VjcmV0"), "is a shared secret"),
        (private_jwk, "is a private key"),
        (lambda signer: signer.jwk("rsa", kid=7), "kid is no text"),
        (lambda signer: signer.jwk("rsa", key_ops=1), "key 1: key_ops is no list"),
        (lambda signer: signer.jwk("rsa", key_ops="verify"), "key 1: key_ops is no list"),
        (lambda signer: signer.jwk("rsa", alg="HS256"), "the algorithm 'HS256', which is not its own"),
        (lambda signer: signer.jwk("p256", alg="ES384"), "not its own"),
        (lambda signer: signer.jwk("rsa", n="AQAB"), "RSA"),
        (lambda signer: {**signer.jwk("rsa"), "n": None}, "is no RSA key"),
        (lambda signer: signer.jwk("p256", x="AAAA"), "is no EC key"),
        (lambda signer: {"kty": "EC"}, "is no EC key"),
        (lambda signer: signer.jwk("ed25519", x="AA"), "is no OKP key"),
    ],
)
def test_a_key_that_must_not_be_there(signer: Signer, make: Any, words: str) -> None:
    with pytest.raises(JwksError, match=words) as caught:
        parse(make(signer), signer.jwk("p521"))
    assert "c2VjcmV0" not in str(caught.value)


def test_weak_keys_and_odd_curves() -> None:
    weak = json.loads(get_algorithm_by_name("RS256").to_jwk(rsa.generate_private_key(65537, 1024).public_key()))
    odd = json.loads(get_algorithm_by_name("ES256K").to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key()))
    with pytest.raises(JwksError) as caught:
        parse(weak, odd)
    assert caught.value.faults == [
        "key 1: is an RSA key of 1024 bits; 2048 are needed",
        "key 2: is on the curve secp256k1, which no algorithm here has",
    ]


def test_a_name_comes_once(signer: Signer) -> None:
    with pytest.raises(JwksError, match="the kid 'rsa' comes twice"):
        parse(signer.jwk("rsa"), signer.jwk("p256", kid="rsa"))
    assert len(parse(signer.jwk("rsa", kid=""), signer.jwk("p256", kid=""))) == 2


@each_of("text", [b"", b"{", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b'{"keys":[1]}', b"\xff", b"[" * 100_000, b'{"keys":[{"kty":"XYZ"}]}'])
def test_what_is_no_file_of_keys(text: bytes) -> None:
    with pytest.raises(JwksError):
        parse_jwks(text)


def test_too_much_is_not_read(tmp_path: Path, signer: Signer) -> None:
    with pytest.raises(JwksError, match="101 keys; 100 at most"):
        parse(*[{}] * 101)
    (tmp_path / "keys").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(JwksError, match="more than 1048576 bytes"):
        read_jwks(tmp_path / "keys")
    (tmp_path / "keys").write_bytes(signer.jwks())
    assert len(read_jwks(tmp_path / "keys")) == 6


@given(
    st.dictionaries(
        st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops"]), st.sampled_from(["EC", "RSA", "P-256", "A", 1, None, []])
    )
)
def test_garbage_is_refused_or_passed_over(item: dict[str, Any]) -> None:
    with pytest.raises(JwksError):
        parse(item)
