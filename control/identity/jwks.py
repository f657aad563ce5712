"""A file of public keys that tokens are signed with (RFC 7517)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

_CURVES: Final = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *_CURVES, "EdDSA")
"""Algorithms of tokens: only those with a public key, because a shared secret that checks signatures can also make them."""
_MIN_RSA: Final = 2048
_MAX_FILE: Final = 1 << 20
_MAX_KEYS: Final = 100
_KINDS: Final = ("RSA", "EC", "OKP")

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class JwksError(ValueError):
    """A file of keys that cannot be used. ``faults`` say why, all of them."""

    def __init__(self, path: str, faults: list[str]) -> None:
        super().__init__(f"{path}: {'; '.join(faults)}")
        self.path = path
        self.faults = faults


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key, and what may be checked with it."""

    key_id: str  # as tokens name it; empty: they do not
    algorithms: tuple[str, ...]  # those of ``ALGORITHMS`` that this key has
    public: PublicKey  # the key


def read_jwks(path: str | Path) -> list[SigningKey]:
    """Read a file of keys. Raises JwksError: it is none; OSError: it cannot be read."""
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise JwksError(str(path), [f"the file has more than {_MAX_FILE} bytes"])
    return parse_jwks(data, str(path))


def parse_jwks(data: bytes, path: str = "jwks") -> list[SigningKey]:
    """Parse the text of a file of keys. Keys of unknown kinds and keys for encryption are ignored. Raises JwksError: it is none, no key is left, or
    one must not be in it.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise JwksError(path, ["not JSON"]) from None
    items = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise JwksError(path, ["not an object with a list of keys"])
    if len(items) > _MAX_KEYS:
        raise JwksError(path, [f"{len(items)} keys; {_MAX_KEYS} at most"])
    keys: list[SigningKey] = []
    faults: list[str] = []
    for number, item in enumerate(items, 1):
        try:
            found = _key(item)
        except ValueError as error:
            faults.append(f"key {number}: {error}")
            continue
        if found is None:
            continue
        if found.key_id and any(found.key_id == other.key_id for other in keys):
            faults.append(f"key {number}: the kid {found.key_id!r} comes twice")
        keys.append(found)
    if not keys and not faults:
        faults.append("no key that a signature can be checked with")
    if faults:
        raise JwksError(path, faults)
    return keys


def _key(item: dict[str, Any]) -> SigningKey | None:
    kind, key_id = item.get("kty"), item.get("kid", "")
    if kind == "oct" or "k" in item:
        raise ValueError("is a shared secret: who can check with it can sign with it")
    if "d" in item:
        raise ValueError("is a private key, which belongs to who signs")
    if not isinstance(key_id, str):
        raise ValueError("kid is no text")
    operations = item.get("key_ops", ["verify"])
    if not isinstance(operations, list):
        raise ValueError("key_ops is no list")
    if kind not in _KINDS or item.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    if kind == "OKP" and item.get("crv") not in ("Ed25519", "Ed448"):
        return None
    try:
        public = jwt.PyJWK(item, {"RSA": "RS256", "EC": None, "OKP": "EdDSA"}[kind]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise ValueError(f"is no {kind} key") from None
    algorithms = _algorithms(public)
    named = item.get("alg")
    if named is not None and named not in algorithms:
        raise ValueError(f"has the algorithm {named!r}, which is not its own")
    return SigningKey(key_id, algorithms if named is None else (named,), public)


def _algorithms(public: PublicKey) -> tuple[str, ...]:
    if isinstance(public, RSAPublicKey):
        if public.key_size < _MIN_RSA:
            raise ValueError(f"is an RSA key of {public.key_size} bits; {_MIN_RSA} are needed")
        return tuple(name for name in ALGORITHMS if name[:2] in ("RS", "PS"))
    if isinstance(public, EllipticCurvePublicKey):
        found = tuple(name for name, curve in _CURVES.items() if curve == public.curve.name)
        if not found:
            raise ValueError(f"is on the curve {public.curve.name}, which no algorithm here has")
        return found
    return ("EdDSA",)
