"""The users of a listener, and responses for unknown users.

For an unknown user the salt is always the same for a name, and a password is hashed before it is refused. The length of the salt, the iterations and
the mechanisms are those of an existing user, which the name selects. So neither response nor time tells which users exist.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from framegate.control.identity.passwords import DEFAULT_ITERATIONS, SALT_SIZE, is_password_of
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, Refused, ScramCredential, WantCredential
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512

_Kind = tuple[tuple[int, int], ...]  # the kind of a user: iterations and size of the salt for each mechanism of ``HASHES``; zeros without an entry
_NO_ENTRY: Final = (0, 0)
_USUAL: Final = (DEFAULT_ITERATIONS, SALT_SIZE)
_PLACES: Final = {name: place for place, name in enumerate(HASHES)}
_FOR_PLAIN: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
"""The first of these that a user has is checked; the cheaper one comes first, because a thief of the file would try that, too."""


class Users:
    """The users of one file, as it was when it was read. Immutable."""

    def __init__(self, file: UsersFile) -> None:
        self._users: Final = file.users
        self._decoy: Final = file.decoy
        self._kinds: Final = sorted({_kind_of(entries) for entries in file.users.values()}) or [(_USUAL,) * len(HASHES)]

    def changed(self, old: "Users") -> list[str]:
        """Names of users in ``old`` that are removed here, or have another password."""
        now = self._users
        return [name for name, entries in old._users.items() if any(now.get(name, {}).get(mechanism) != item for mechanism, item in entries.items())]

    def __len__(self) -> int:
        return len(self._users)

    @property
    def entries(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """Credentials by user and mechanism, users in the order of the file."""
        return self._users

    def credential(self, auth_request: WantCredential) -> ScramCredential:
        """The stored credential of a user, or a decoy."""
        return self._users.get(auth_request.user, {}).get(auth_request.mechanism) or self._decoy_of(auth_request.mechanism, auth_request.user)

    def plain_credential(self, user: str) -> tuple[str, ScramCredential]:
        """The mechanism and credential against which a password is checked; for an unknown user, a decoy."""
        kind = self._kind(user)
        mechanism = next((item for item in _FOR_PLAIN if kind[_PLACES[item]] != _NO_ENTRY), _FOR_PLAIN[0])
        return mechanism, self.credential(WantCredential(mechanism, user))

    def check(self, auth_request: CheckPassword) -> Accepted | Refused:
        """Whether it is the user's password. Takes milliseconds."""
        mechanism, credential = self.plain_credential(auth_request.user)
        is_right = is_password_of(mechanism, credential, auth_request.password)
        if not credential.is_known:
            return Refused("no such user")
        return Accepted(auth_request.user) if is_right else Refused("wrong password")

    def _decoy_of(self, mechanism: str, user: str) -> ScramCredential:
        """The credential that is sent for a user without such an entry."""

        def derived(what: str) -> bytes:
            return self._derive(f"{what}\0{mechanism}\0{user}", HASHES[mechanism])

        place = _PLACES[mechanism]
        iterations, size = self._kind(user)[place]
        if size == 0:
            iterations, size = next((kind[place] for kind in self._kinds if kind[place] != _NO_ENTRY), _USUAL)
        salt = hashlib.shake_256(derived("salt")).digest(size)
        return ScramCredential(salt, iterations, derived("stored key"), derived("server key"), is_known=False)

    def _kind(self, user: str) -> _Kind:
        """The kind of a user; for an unknown user, one that the name selects."""
        entries = self._users.get(user)
        if entries is not None:
            return _kind_of(entries)
        return self._kinds[int.from_bytes(self._derive(f"kind\0{user}", "sha256")[:8]) % len(self._kinds)]

    def _derive(self, text: str, name: str) -> bytes:
        return hmac.digest(self._decoy, text.encode(errors="surrogatepass"), name)


def _kind_of(entries: Mapping[str, ScramCredential]) -> _Kind:
    return tuple((entries[name].iterations, len(entries[name].salt)) if name in entries else _NO_ENTRY for name in HASHES)
