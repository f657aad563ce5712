"""Stored credentials of passwords, as SCRAM needs them (RFC 5802, 3), for each hash. PLAIN is checked against the same credentials."""

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from typing import Final

from framegate.proxy.auth.auth_requests import ScramCredential, ScramKeys
from framegate.proxy.auth.scram import HASHES, MAX_ITERATIONS, MIN_ITERATIONS

DEFAULT_ITERATIONS: Final = 8192
"""About 3.5 ms for SHA-256 and 8 ms for SHA-512 (one core, OpenSSL 3.0): a check of PLAIN costs that, and so does a guess from a stolen file."""
SALT_SIZE: Final = 16
_MIN_SALT, _MAX_SALT = 8, 1024
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")


def keys_of(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """The keys of a password. Takes milliseconds, without the interpreter's lock."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    return ScramKeys(hmac.digest(salted, b"Client Key", name), hmac.digest(salted, b"Server Key", name))


def new_credentials(password: str, *, iterations: int = DEFAULT_ITERATIONS) -> dict[str, ScramCredential]:
    """The credentials of a password, by mechanism, each with a new salt."""
    return {mechanism: _credential(mechanism, password, os.urandom(SALT_SIZE), iterations) for mechanism in HASHES}


def _credential(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    keys = keys_of(mechanism, password, salt, iterations)
    return ScramCredential(salt, iterations, hashlib.new(HASHES[mechanism], keys.client_key).digest(), keys.server_key)


def is_password_of(mechanism: str, credential: ScramCredential, password: str) -> bool:
    """Whether a password is the stored one. Takes the same time for a right and a wrong one."""
    found = _credential(mechanism, password, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def format_credential(credential: ScramCredential) -> str:
    """In Kafka's text form: ``salt=…,stored_key=…,server_key=…,iterations=…``."""
    salt, stored, server = (base64.b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key))
    return f"salt={salt},stored_key={stored},server_key={server},iterations={credential.iterations}"


def parse_credential(mechanism: str, text: str) -> ScramCredential:
    """Read Kafka's text form. Raises ValueError: it is none, or one that is not good enough for the mechanism."""
    pairs = [part.partition("=") for part in text.split(",")]
    fields = {name: value for name, equals, value in pairs if equals}
    if len(pairs) != len(_FIELDS) or set(fields) != set(_FIELDS):
        raise ValueError(f"a credential has {', '.join(_FIELDS)}, each once")
    salt, stored, server = (_base64(fields, name) for name in _FIELDS[:3])
    if not fields["iterations"].isascii() or not fields["iterations"].isdigit() or len(fields["iterations"]) > 9:
        raise ValueError("iterations is no number")
    credential = ScramCredential(salt, int(fields["iterations"]), stored, server)
    for field, reason in credential_faults(mechanism, credential):
        raise ValueError(f"{field} {reason}")
    return credential


def credential_faults(mechanism: str, credential: ScramCredential) -> Iterator[tuple[str, str]]:
    """Why a credential is not good enough for a mechanism: field and reason of each fault, without anything secret."""
    if not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
        yield "iterations", f"is {credential.iterations}; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed"
    if not _MIN_SALT <= len(credential.salt) <= _MAX_SALT:
        yield "salt", f"has {len(credential.salt)} bytes; {_MIN_SALT} to {_MAX_SALT} are allowed"
    size = hashlib.new(HASHES[mechanism]).digest_size
    for field, key in (("stored_key", credential.stored_key), ("server_key", credential.server_key)):
        if len(key) != size:
            yield field, f"has {len(key)} bytes; those of {mechanism} have {size}"


def _base64(fields: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except ValueError:
        raise ValueError(f"{name} is not base64") from None
