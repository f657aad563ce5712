"""The most frequent keys of a stream, in bounded memory, however many different keys there are.

The summary of Misra and Gries, with weights (Agarwal et al., Mergeable Summaries, 2012): when there are too many counters, the same amount is taken
from all, and those at 0 are forgotten. So a count is never too high, and too low by at most the total divided by ``capacity + 1``: each key with more
than that share of the total has a counter.
"""

from typing import Final

from mypy_extensions import i64

CAPACITY: Final = 500  # each count is right within 0.2 % of the total; there are at most twice as many counters
Key = tuple[str, str, str, str]  # Listener, principal, client id and address; empty: none
MEASURES: Final = ("bytes", "frames", "held", "refusals", "logins", "unavailable", "login_users", "login_addresses")
"""What ``client_use`` adds up; ``logins``: with wrong credentials; ``unavailable``: that could not be checked, of a listener; the last two are
``logins`` without their addresses, and without their users. It is here because control loads this module, and not the data path.
"""


class Frequent:
    """Adds up amounts by key. ``capacity``: counters that are kept when there are too many, that is more than twice as many."""

    def __init__(self, capacity: i64 = CAPACITY) -> None:
        self.counts: dict[Key, int] = {}  # by key
        self.missed: i64 = 0  # at most so much is missing from each count
        self._capacity: Final[i64] = capacity

    def add(self, key: Key, amount: i64) -> None:
        """Add an amount above 0."""
        self.counts[key] = self.counts.get(key, 0) + int(amount)
        if i64(len(self.counts)) > 2 * self._capacity:
            self._forget()

    def _forget(self) -> None:
        least = sorted(self.counts.values(), reverse=True)[int(self._capacity)]
        self.counts = {key: count - least for key, count in self.counts.items() if count > least}
        self.missed += least
