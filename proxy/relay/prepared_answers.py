"""Answers of framegate's own, in the order of the upstream's: to requests that are refused, and not passed on.

Such a request is replaced on its way by an ApiVersions request of version 0 with the same correlation id, the smallest that every broker answers, and
the answer to that by the prepared one. So the order is the broker's, and a client sees its answers as if they had come from there.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.relay.kafka_rules import AnswerChange

MOST_PREPARED: Final = 1_000  # Prepared answers on one connection above which its client is muted for ``peer`` until half of them have left
_TOKENS: Final = 1 << 30


class PreparedAnswers:
    """The prepared answers of one connection, booked at the memory pool until they are taken."""

    def __init__(self, account: Account) -> None:
        self.booked: i64 = 0  # bytes booked
        self._account: Final = account
        self._bodies: Final[dict[int, bytes | AnswerChange]] = {}
        self._last: i64 = 0

    @property
    def count(self) -> i64:
        return i64(len(self._bodies))

    def put(self, body: bytes | AnswerChange) -> i64:
        """Keep an answer, a body from the correlation id on, or what is changed in one. Returns the number by which it is taken, above 0."""
        self._last = self._last % _TOKENS + 1
        self._bodies[int(self._last)] = body
        self._book(_size(body) + PIECE_OVERHEAD)
        return self._last

    def take(self, number: i64) -> bytes | AnswerChange:
        body = self._bodies.pop(int(number))
        self._book(-(_size(body) + PIECE_OVERHEAD))
        return body

    def close(self) -> None:
        """Forget all of them: the pair ends. A second call has no effect."""
        self._bodies.clear()
        self._book(-self.booked)

    def _book(self, size: i64) -> None:
        self.booked += size
        if size > 0:
            self._account.charge(BEGUN, size, self)
        else:
            self._account.release(BEGUN, -size, self)


def _size(body: bytes | AnswerChange) -> i64:
    return i64(len(body)) if isinstance(body, bytes) else body.size
