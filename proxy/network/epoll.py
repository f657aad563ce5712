"""The bits of epoll's events as the compiler's constants: those of ``select`` are looked up each time."""

import select
from typing import Final

__all__ = ["BROKEN", "EPOLLERR", "EPOLLHUP", "EPOLLIN", "EPOLLOUT", "EPOLLRDHUP", "UNREGISTERED"]

EPOLLIN: Final = 1
EPOLLOUT: Final = 4
EPOLLERR: Final = 8
EPOLLHUP: Final = 16
EPOLLRDHUP: Final = 8192
BROKEN: Final = EPOLLERR | EPOLLHUP
UNREGISTERED: Final = -1  # in place of an interest: epoll does not know the descriptor
assert (select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR) == (EPOLLIN, EPOLLOUT, EPOLLERR)
assert (select.EPOLLHUP, select.EPOLLRDHUP) == (EPOLLHUP, EPOLLRDHUP)
