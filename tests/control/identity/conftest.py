"""Keys and tokens."""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from framegate.control.identity.jwks import parse_jwks
from framegate.control.identity.tokens import TokenRules, Tokens

NOW = 1_800_000_000
RULES = TokenRules("https://issuer", "framegate")


class Signer:
    """Private keys of every kind, and the file of their public ones."""

    def __init__(self) -> None:
        self.private: dict[str, Any] = {
            "rsa": rsa.generate_private_key(65537, 2048),
            "p256": ec.generate_private_key(ec.SECP256R1()),
            "p384": ec.generate_private_key(ec.SECP384R1()),
            "p521": ec.generate_private_key(ec.SECP521R1()),
            "ed25519": ed25519.Ed25519PrivateKey.generate(),
            "ed448": ed448.Ed448PrivateKey.generate(),
        }

    def jwk(self, name: str, **extra: Any) -> dict[str, Any]:
        """The public key, as in a file."""
        public = self.private[name].public_key()
        kind = {"r": "RS256", "p": "ES256", "e": "EdDSA"}[name[0]]
        found = json.loads(jwt.get_algorithm_by_name(kind).to_jwk(public))
        found.pop("key_ops", None)
        return {**found, "kid": name, **extra}

    def jwks(self) -> bytes:
        return json.dumps({"keys": [self.jwk(name) for name in self.private]}).encode()

    def pem(self, name: str) -> bytes:
        """The public key in PEM form."""
        public = self.private[name].public_key()
        return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def token(self, name: str = "rsa", algorithm: str = "RS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A signed token; a claim that is None is left out."""
        usual = {"iss": "https://issuer", "aud": "framegate", "sub": "alice", "exp": NOW + 60, **claims}
        left = {key: value for key, value in usual.items() if value is not None}
        header = {"kid": name} if headers is None else headers
        return jwt.encode(left, self.private[name], algorithm, headers=header)

    def tokens(self, rules: TokenRules = RULES) -> Tokens:
        return Tokens(rules, parse_jwks(self.jwks()))


@pytest.fixture(scope="session")
def signer() -> Signer:
    return Signer()


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
