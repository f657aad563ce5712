"""The bits of epoll's events, and the interface for the events of one descriptor."""

import abc
import select
from typing import Final

from mypy_extensions import i64, mypyc_attr

# Copies of the constants of ``select``, which the compiler cannot inline.
EPOLLIN: Final = 1
EPOLLOUT: Final = 4
EPOLLERR: Final = 8
EPOLLHUP: Final = 16
EPOLLRDHUP: Final = 8192
BROKEN: Final = EPOLLERR | EPOLLHUP
UNREGISTERED: Final = -1  # instead of an interest: the descriptor is not registered
assert (select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR) == (EPOLLIN, EPOLLOUT, EPOLLERR)
assert (select.EPOLLHUP, select.EPOLLRDHUP) == (EPOLLHUP, EPOLLRDHUP)


@mypyc_attr(allow_interpreted_subclasses=True)
class FdHandler(abc.ABC):
    """Handles the events of one descriptor."""

    @abc.abstractmethod
    def on_event(self, events: i64) -> None:
        """Handle ``events``, the bits from epoll. An exception is noted as a fault; the descriptor stays registered."""
