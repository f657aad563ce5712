"""Password checks of one listener whose result is known without a hash: a hash takes milliseconds, and other logins wait for it.

The last good password of a user is known, and the last wrong passwords of a user from an address. Passwords themselves are not stored: each entry is
a keyed hash (HMAC, with a key of this process) of the password and of the user's stored credential, so it is void once the credential changes. The
same is remembered for existing and for unknown users.

Repeated logins with different wrong passwords are delayed: after ``FREE`` of them, logins of that user from that address are refused for a time,
which doubles each time; after ``FREE_OF_ADDRESS`` of them, for any users, all logins from that address. A user whose password is known can still log
in.
"""

import dataclasses
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from framegate.control.identity.users import Users
from framegate.proxy.auth.auth_requests import Accepted, AuthResponse, CheckPassword, Refused, Unavailable

K = TypeVar("K")
V = TypeVar("V")
KNOWN: Final = 16384  # Users whose password is known; 0.2 KiB each
PUT_OFF: Final = 4096  # Users and addresses with wrong passwords; 0.5 KiB each
WRONG: Final = 4  # Wrong passwords that are remembered for each user and address
FREE: Final = 5  # Different wrong passwords in a row before logins of the user from the address are delayed
FREE_OF_ADDRESS: Final = 50  # the same for an address, which many clients may share: each second reduces the count by one
FIRST_S: Final = 0.5
MOST_S: Final = 30.0
_FORGET_S: Final = 300.0  # without a wrong password


@dataclasses.dataclass(slots=True)
class _Failures:
    """The wrong passwords of one user from one address, or of all users from it."""

    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0
    wrong: OrderedDict[bytes, str] = dataclasses.field(default_factory=OrderedDict)  # with the reason of each refusal


class PasswordChecks:
    """Any thread. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._key: Final = os.urandom(32)
        self._lock: Final = threading.Lock()
        self._known: Final[OrderedDict[bytes, bytes]] = OrderedDict()
        self._failures: Final[OrderedDict[bytes, _Failures]] = OrderedDict()

    def at_once(self, users: Users, auth_request: CheckPassword, address: str) -> AuthResponse | None:
        """The response, if it needs no hash; None: it needs one. ``address``: of the client, as limits count addresses."""
        mac, user = self._mac(users, auth_request), self._digest(auth_request.user)
        with self._lock:
            if hmac.compare_digest(self._known.get(user, bytes(len(mac))), mac):
                self._known.move_to_end(user)
                return Accepted(auth_request.user)
            now_s = self._clock()
            failures = self._failures.get(self._digest(auth_request.user, address))
            if failures is not None:
                if mac in failures.wrong:
                    return Refused(failures.wrong[mac])
                if failures.until_s > now_s:
                    return _put_off(failures, "of this user from this address", now_s)
            everybody = self._failures.get(self._digest(address)) if address else None
            return _put_off(everybody, "from this address", now_s) if everybody is not None and everybody.until_s > now_s else None

    def check(self, users: Users, auth_request: CheckPassword, address: str) -> AuthResponse:
        """Whether it is the user's password. May take milliseconds."""
        answer = self.at_once(users, auth_request, address)
        if answer is not None:
            return answer
        found = users.check(auth_request)
        mac, user, place = self._mac(users, auth_request), self._digest(auth_request.user), self._digest(auth_request.user, address)
        with self._lock:
            if isinstance(found, Accepted):
                self._failures.pop(place, None)
                _put(self._known, user, mac, KNOWN)
            else:
                _put(self._note(place, FREE, MOST_S).wrong, mac, found.reason, WRONG)
                if address:
                    self._note(self._digest(address), FREE_OF_ADDRESS, MOST_S, forgiven_per_s=1.0)
        return found

    def _note(self, place: bytes, free: int, most_s: float, forgiven_per_s: float = 0.0) -> _Failures:
        now_s = self._clock()
        failures = self._failures.get(place)
        if failures is None or failures.last_s + _FORGET_S < now_s:
            failures = _Failures()
        _put(self._failures, place, failures, PUT_OFF)
        failures.count = max(0, failures.count - int((now_s - failures.last_s) * forgiven_per_s)) + 1
        failures.last_s = now_s
        if failures.count >= free:
            failures.until_s = now_s + min(FIRST_S * 2 ** min(failures.count - free, 10), most_s)
        return failures

    def _mac(self, users: Users, auth_request: CheckPassword) -> bytes:
        mechanism, stored = users.plain_credential(auth_request.user)
        return self._digest(mechanism, stored.salt, stored.stored_key, auth_request.user, auth_request.password)

    def _digest(self, *parts: str | bytes) -> bytes:
        data = b""
        for part in parts:
            each = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
            data += len(each).to_bytes(4, "big") + each
        return hmac.digest(self._key, data, "sha256")


def _put_off(failures: _Failures, whose: str, now_s: float) -> Unavailable:
    return Unavailable(f"{failures.count} wrong passwords {whose}: not tried for {failures.until_s - now_s:.1f} s")


def _put(items: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    items[key] = value
    items.move_to_end(key)
    while len(items) > most:
        items.popitem(last=False)
