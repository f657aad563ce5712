"""The interface of observers of pairs and endpoints: the loop of the processor, and tests."""

import abc

from mypy_extensions import mypyc_attr

from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.upstream import Endpoint, Upstream

__all__ = ["PairWatcher"]


@mypyc_attr(allow_interpreted_subclasses=True)
class PairWatcher(abc.ABC):
    """Told by the relay and by the drain."""

    @abc.abstractmethod
    def pair_opened(self, pair: Pair) -> None:
        """The pair is OPEN; told once for each that comes to that, where ``PairOwner.reports_open``."""

    @abc.abstractmethod
    def pair_closed(self, pair: Pair) -> None:
        """The pair is over; told once for each."""

    @abc.abstractmethod
    def pair_muted(self, pair: Pair) -> None:
        """A mute of the client's channel that had to wait is in force."""

    @abc.abstractmethod
    def drained(self, cut_off: int) -> None:
        """A drain left no pair. ``cut_off``: how many did not become quiet in time."""

    @abc.abstractmethod
    def endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        """An endpoint is down, its back-off is longer, or it is up again; at most once a second for each that is down."""
