"""Who the users are, and what is said of those who are none.

Of a user that there is not, a salt is told that is always the same for a name, and a count of iterations that is that of most users; and a password
is hashed before it is refused. Neither answer nor time tells who is there, as long as all have an entry for SCRAM-SHA-256, as ours do.
"""

import collections
import hmac
from typing import Final

from control.identity.passwords import DEFAULT_ITERATIONS, SALT_SIZE, is_password_of
from control.identity.users_file import UsersFile
from proxy.auth.questions import Accepted, CheckPassword, Refused, ScramCredential, WantCredential
from proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512

__all__ = ["Users"]

_FOR_PLAIN: Final = (SCRAM_SHA_256, SCRAM_SHA_512)  # whichever a user has, the cheaper one first: who steals the file tries that, too


class Users:
    """The users of one file, as it was when it was read. Immutable."""

    def __init__(self, file: UsersFile) -> None:
        self._users: Final = file.users
        self._decoy: Final = file.decoy
        self._iterations: Final = {mechanism: self._usual_iterations(mechanism) for mechanism in HASHES}

    def __len__(self) -> int:
        return len(self._users)

    def shown(self) -> list[tuple[str, dict[str, int]]]:
        """Name, and iterations by mechanism, of each, in the order of the file."""
        return [(name, {mechanism: item.iterations for mechanism, item in entry.items()}) for name, entry in self._users.items()]

    def credential(self, question: WantCredential) -> ScramCredential:
        """What is stored of a user, or a decoy."""
        return self._users.get(question.user, {}).get(question.mechanism) or self._decoy_of(question.mechanism, question.user)

    def check(self, question: CheckPassword) -> Accepted | Refused:
        """Whether it is the user's password. Takes milliseconds."""
        stored = self._users.get(question.user, {})
        mechanism = next((item for item in _FOR_PLAIN if item in stored), _FOR_PLAIN[0])
        credential = self.credential(WantCredential(mechanism, question.user))
        is_right = is_password_of(mechanism, credential, question.password)
        if not credential.is_known:
            return Refused("no such user")
        return Accepted(question.user) if is_right else Refused("wrong password")

    def _decoy_of(self, mechanism: str, user: str) -> ScramCredential:
        def derived(what: str) -> bytes:
            return hmac.digest(self._decoy, f"{what}\0{mechanism}\0{user}".encode(errors="surrogatepass"), HASHES[mechanism])

        return ScramCredential(derived("salt")[:SALT_SIZE], self._iterations[mechanism], derived("stored key"), derived("server key"), is_known=False)

    def _usual_iterations(self, mechanism: str) -> int:
        counts = collections.Counter(item[mechanism].iterations for item in self._users.values() if mechanism in item)
        return counts.most_common(1)[0][0] if counts else DEFAULT_ITERATIONS
