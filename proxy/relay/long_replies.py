"""Replies that stay in the handler process until there is memory for them: each takes its turn, as a large frame that passes whole does.

A reply is announced, which is when it asks for its turn; when the turn is in, the process is asked for it; the turn ends when what the reply brought
is booked where it goes.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from proxy.network.memory_pool import MemoryPool, with_overhead
from proxy.network.run import Buffer
from proxy.network.selector import Selector
from proxy.network.turns import Turn, TurnOwner
from proxy.relay.handler_wire import WireError

__all__ = ["Asker", "LongReplies", "pieces_from"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Asker(abc.ABC):
    """Who can have the process send a reply that waits."""

    @abc.abstractmethod
    def ask_for(self, connection: i64, direction: i64) -> None:
        """There is memory for it."""


class _LongReply(TurnOwner):
    """One of them: it holds nothing here before it comes, so that it is never what holds others up."""

    def __init__(self, asker: Asker, connection: i64, direction: i64) -> None:
        self._asker: Final = asker
        self._connection: Final[i64] = connection
        self._direction: Final[i64] = direction

    def turn_given(self) -> None:
        self._asker.ask_for(self._connection, self._direction)

    def is_dry(self) -> bool:
        return False  # it was asked for, and comes

    def is_held_up(self) -> bool:
        return False


class LongReplies:
    """Those of one handler process. A ``key`` is twice a connection's id, and the direction."""

    def __init__(self, asker: Asker, pool: MemoryPool, selector: Selector) -> None:
        self._asker: Final = asker
        self._pool: Final = pool
        self._selector: Final = selector
        self._turns: Final[dict[int, Turn]] = {}
        self._came: Final[list[Turn]] = []  # of those that this read completed

    def announce(self, key: i64, size: i64) -> None:
        """A reply waits in the process.

        Raises:
            WireError: another one of its connection and direction does.
        """
        if key in self._turns:
            raise WireError(f"connection {key >> 1} has two replies that wait in one direction")
        needed = with_overhead(size)
        turn = self._turns[int(key)] = Turn(self._pool.answers, _LongReply(self._asker, key >> 1, key & 1), needed)
        if turn.ask(needed):
            self._asker.ask_for(key >> 1, key & 1)
        else:
            self._selector.watch_turns()

    def came(self, key: i64, size: i64) -> None:
        """A long reply is here.

        Raises:
            WireError: it was not asked for.
        """
        turn = self._turns.get(int(key))
        if turn is None or not turn.is_in:
            raise WireError(f"a reply of {size} bytes, which was not asked for")
        del self._turns[int(key)]
        self._came.append(turn)

    def forget(self, connection: i64) -> None:
        """Nobody wants what waits, if anything does; what was asked for comes all the same, and keeps its turn until then."""
        if not self._turns:
            return
        for key in (2 * connection, 2 * connection + 1):
            turn = self._turns.get(int(key))
            if turn is not None and not turn.is_in:
                del self._turns[int(key)]
                turn.leave()

    def end_turns(self) -> None:
        """Those that came are where they go: others have their turns."""
        while self._came:
            self._came.pop().leave()

    def drop(self) -> None:
        """None of them comes any more."""
        self._came.extend(self._turns.values())
        self._turns.clear()
        self.end_turns()


def pieces_from(pieces: list[Buffer], skip: i64) -> list[Buffer]:
    """What is in some pieces from so many bytes on."""
    found: list[Buffer] = []
    for piece in pieces:
        length: i64 = len(piece)
        if skip >= length:
            skip -= length
            continue
        found.append(memoryview(piece)[skip:] if skip != 0 else piece)
        skip = 0
    return found
