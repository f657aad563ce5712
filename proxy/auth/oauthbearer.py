r"""OAUTHBEARER (RFC 7628): ``n,[a=authzid],\x01auth=Bearer TOKEN\x01[key=value\x01…]\x01``.

As in Kafka, a server answers a refused token with a JSON object, and with an error when the client has confirmed that with ``\x01``.
"""

import base64
import json
import re
from collections.abc import Mapping
from typing import Final

from framegate.proxy.auth.auth_requests import Accepted, AuthResponse, CheckToken, Refused, Secret, WantSecret
from framegate.proxy.auth.mechanism import Ask, ClientMechanism, Next, RefusalError, Reply, ServerMechanism, escape_name, expect, unescape_name
from framegate.proxy.errors import quoted

OAUTHBEARER: Final = "OAUTHBEARER"

MAX_PAIRS: Final = 128  # in a message: the token and extensions
_CONFIRMATION: Final = b"\x01"
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = re.compile(r"([A-Za-z0-9_]+) +([A-Za-z0-9._~+/-]+=*)")


class OAuthBearerServer(ServerMechanism):
    """Reads the token in the first message and ignores extensions. The reason of a refusal is logged; the client gets the RFC's standard response."""

    def __init__(self) -> None:
        super().__init__()
        self._authorization: str = ""
        self._refused: Refused | None = None

    def evaluate(self, token: bytes) -> Next:
        if self._refused is not None:
            raise RefusalError(self._refused.reason, told=_status(self._refused))
        self._authorization, text = _read(token)
        self.user = self._authorization or _subject(text)
        return Ask(CheckToken(text))

    def resume(self, answer: AuthResponse) -> Next:
        if isinstance(answer, Refused):
            self._refused, self.refused = answer, answer.reason
            return Reply(_status(answer).encode())
        accepted = expect(Accepted, answer)
        if self._authorization not in ("", accepted.principal):
            raise RefusalError(
                f"the client wants to be {quoted(self._authorization)} with the token of {quoted(accepted.principal)}",
                told="Authentication failed: Client requested an authorization id that is different from the token's principal name",
            )
        self.principal, self.lifetime_ms, self.complete = accepted.principal, accepted.lifetime_ms, True
        return Reply(b"")


class OAuthBearerClient(ClientMechanism):
    """Asks for the token."""

    def __init__(self, credential: str, *, authorization: str = "", extensions: Mapping[str, str] | None = None) -> None:
        """``authorization``: the authorization id, if it is not the token's principal. Raises ValueError: an extension is malformed."""
        super().__init__()
        for key, value in (extensions or {}).items():
            if key == "auth" or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise ValueError(f"no extension of OAUTHBEARER: {key!r}")
        self._credential: Final = credential
        self._header: Final = f"n,{f'a={escape_name(authorization)}' if authorization else ''},"
        self._extensions: Final = "".join(f"{key}={value}\x01" for key, value in (extensions or {}).items())

    def begin(self) -> Next:
        return Ask(WantSecret(self._credential))

    def resume(self, answer: AuthResponse) -> Next:
        token = expect(Secret, answer).text
        if not _AUTH.fullmatch(f"Bearer {token}"):
            raise RefusalError("the token has characters that none has")
        self.secrets = (token.encode(),)
        return Reply(f"{self._header}\x01auth=Bearer {token}\x01{self._extensions}\x01".encode())

    def evaluate(self, token: bytes) -> Next | None:
        if token:  # a refusal, which the error will repeat
            return Reply(_CONFIRMATION)
        self.complete = True
        return None


def _status(refused: Refused) -> str:
    """The error response for the client (RFC 7628, 3.2.2)."""
    if refused.scope:
        return json.dumps({"status": "insufficient_scope", "scope": refused.scope})
    return json.dumps({"status": "invalid_token"})


def _read(message: bytes) -> tuple[str, str]:
    """The authorization id, or an empty text, and the token of a client's first message."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise RefusalError("the message is not UTF-8") from None
    header, *pairs = text.split("\x01")
    flag, _, authorization = header.partition(",")
    if flag != "n" or not authorization.endswith(","):
        raise RefusalError("the message does not begin with n,[a=name],")
    authorization = authorization[:-1]
    if authorization and not authorization.startswith("a="):
        raise RefusalError("the message does not begin with n,[a=name],")
    if pairs[-2:] != ["", ""]:
        raise RefusalError("the message does not end as it must")
    return unescape_name(authorization[2:]) if authorization else "", _token_of(pairs[:-2])


def _token_of(pairs: list[str]) -> str:
    if len(pairs) > MAX_PAIRS:
        raise RefusalError(f"{len(pairs)} pairs, more than {MAX_PAIRS}")
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in values:
            raise RefusalError("a pair that is none, or comes twice")
        values[key] = value
    match = _AUTH.fullmatch(values.get("auth", ""))
    if match is None:
        raise RefusalError("the message has no auth=Bearer TOKEN")
    if match[1].lower() != "bearer":
        raise RefusalError("the scheme is not Bearer")
    return match[2]


def _subject(token: str) -> str:
    """The ``sub`` of a JWT, which is not checked here; empty: it has none, or is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(f"{parts[1]}==="))
    except (ValueError, RecursionError):
        return ""
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject if isinstance(subject, str) else ""
