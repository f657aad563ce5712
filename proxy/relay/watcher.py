"""Who wants to know about pairs as a whole: the loop of the processor, and tests."""

import abc

from mypy_extensions import mypyc_attr

from proxy.relay.pair import Pair

__all__ = ["PairWatcher"]


@mypyc_attr(allow_interpreted_subclasses=True)
class PairWatcher(abc.ABC):
    """Told by the relay and by the drain."""

    @abc.abstractmethod
    def pair_closed(self, pair: Pair) -> None:
        """The pair is over; told once for each."""

    @abc.abstractmethod
    def pair_muted(self, pair: Pair) -> None:
        """A mute of the client's channel that had to wait is in force."""

    @abc.abstractmethod
    def drained(self, cut_off: int) -> None:
        """A drain left no pair. ``cut_off``: how many did not become quiet in time."""
