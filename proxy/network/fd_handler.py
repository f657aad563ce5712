"""The interface for events of one descriptor."""

import abc

from mypy_extensions import i64, mypyc_attr

__all__ = ["FdHandler"]


@mypyc_attr(allow_interpreted_subclasses=True)
class FdHandler(abc.ABC):
    """Handles the events of one descriptor."""

    @abc.abstractmethod
    def on_event(self, events: i64) -> None:
        """``events`` is what epoll said. What raises is a fault; the descriptor is looked at again when something happens."""
