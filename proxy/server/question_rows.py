"""What authenticators ask, and what they are told, as rows of the link: the fields of ``proxy.auth.questions``, under the same names.

Bytes are written in hexadecimal. Many hold secrets: a row is judged without a word of what is in it, and is in no log.
"""

from typing import Any, Final, TypedDict

__all__ = ["ANSWERS", "QUESTIONS"]


class SupportedApisRow(TypedDict):
    """Which requests will be understood?"""

    version: int


class WantCredentialRow(TypedDict):
    """What is stored of a user?"""

    mechanism: str
    user: str


class CheckPasswordRow(TypedDict):
    """Is that the user's password?"""

    user: str
    password: str


class CheckTokenRow(TypedDict):
    """Is that token good?"""

    token: str


class WantSecretRow(TypedDict):
    """A password, or a token."""

    credential: str


class WantScramKeysRow(TypedDict):
    """The keys of a password."""

    credential: str
    mechanism: str
    salt: str
    iterations: int


class KnownApisRow(TypedDict):
    """Requests that will be understood."""

    answer: str


class ScramCredentialRow(TypedDict):
    """What is stored of a user."""

    salt: str
    iterations: int
    stored_key: str
    server_key: str
    is_known: bool
    lifetime_ms: int | None


class AcceptedRow(TypedDict):
    """Who it is."""

    principal: str
    lifetime_ms: int | None


class RefusedRow(TypedDict):
    """It is not."""

    reason: str
    scope: str


class SecretRow(TypedDict):
    """A password, or a token."""

    text: str


class ScramKeysRow(TypedDict):
    """The keys of a password."""

    client_key: str
    server_key: str


class UnavailableRow(TypedDict):
    """It cannot be answered."""

    reason: str


QUESTIONS: Final[dict[str, Any]] = {
    "SupportedApis": SupportedApisRow,
    "WantCredential": WantCredentialRow,
    "CheckPassword": CheckPasswordRow,
    "CheckToken": CheckTokenRow,
    "WantSecret": WantSecretRow,
    "WantScramKeys": WantScramKeysRow,
}
"""By the name of the class."""
ANSWERS: Final[dict[str, Any]] = {
    "KnownApis": KnownApisRow,
    "ScramCredential": ScramCredentialRow,
    "Accepted": AcceptedRow,
    "Refused": RefusedRow,
    "Secret": SecretRow,
    "ScramKeys": ScramKeysRow,
    "Unavailable": UnavailableRow,
}
