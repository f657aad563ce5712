"""Ends the connections of one listener whose proof was revoked: users that are removed or have other passwords, and revoked certificates.

The control process names them. Open pairs end at once. A client that began to authenticate before, and becomes READY later, may have been checked
against old data: names are kept for as long as an authentication can take.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.channel import Channel

WITH_PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
EVERYBODY: Final = ""
USER: Final = "the user was removed, or the password was changed"
CERTIFICATE: Final = "the certificate is revoked"


class Revocations:
    """The revoked users and certificates of one listener. ``keep_ns``: how long an authentication may take."""

    def __init__(self, keep_ns: i64) -> None:
        self._keep_ns: Final[i64] = keep_ns
        self._users: dict[str, int] = {}  # the time of each, on the selector's clock
        self._serials: dict[str, int] = {}

    def add(self, users: list[str] | None, serials: list[str] | None, now_ns: i64) -> None:
        """Add names of users, and serial numbers as in ``Identity.serial``; None: all users."""
        self._users = _with(self._users, users, now_ns, self._keep_ns)
        self._serials = _with(self._serials, serials, now_ns, self._keep_ns)

    def reason(self, channel: Channel) -> str:
        """Why a READY client must end; empty: it need not."""
        identity = channel.identity
        if identity is None or (not self._users and not self._serials):
            return ""
        if identity.mechanism in WITH_PASSWORDS and _covers(self._users, channel.principal, channel.proof_began_ns):
            return USER
        return CERTIFICATE if identity.serial and _covers(self._serials, identity.serial, channel.opened_ns) else ""


def _with(known: dict[str, int], names: list[str] | None, now_ns: i64, keep_ns: i64) -> dict[str, int]:
    kept = {name: at_ns for name, at_ns in known.items() if i64(at_ns) + keep_ns >= now_ns}
    for name in [EVERYBODY] if names is None else names:
        kept[name] = int(now_ns)
    return kept


def _covers(known: dict[str, int], name: str, began_ns: i64) -> bool:
    return i64(max(known.get(name, 0), known.get(EVERYBODY, 0))) >= began_ns
