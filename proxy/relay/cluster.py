"""The brokers of a Kafka cluster, as control last said, and what the clients of the listeners in front of it are told."""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.kafka.addresses import AddressRewriter, AdvertisedBrokers, SeenBroker

Report = Callable[[str, list[SeenBroker]], None]  # Called with an upstream's name and the brokers that an answer named

BOOTSTRAP: Final = -1  # in place of a node id: no broker in particular
REPORT_NS: Final = 1_000_000_000
_MOST_ID: Final = 2147483647


class Cluster:
    """The brokers of one upstream."""

    def __init__(self, upstream: str) -> None:
        self.upstream: Final = upstream  # its name
        self.brokers: dict[int, SeenBroker] = {}  # those in force, by node id
        # called if these are not the brokers in force: at most once a second, and not with the list of the call before; None: nobody wants to know
        self.report: Report | None = None
        self._seen: dict[int, SeenBroker] = {}
        self._reported: dict[int, SeenBroker] = {}
        self._reported_ns: i64 = -REPORT_NS

    def put(self, brokers: list[SeenBroker]) -> None:
        self.brokers = {each.node: each for each in brokers}
        self._seen = self._reported = {}

    def look(self, seen: list[SeenBroker] | None, now_ns: i64) -> None:
        """An answer that names brokers has passed. ``seen``: the brokers in it; None: the same as in the answer before."""
        if seen is not None:
            self._seen = {each.node: each for each in seen}
        if not self._seen or self._seen in (self.brokers, self._reported) or self.report is None or now_ns - self._reported_ns < REPORT_NS:
            return
        self._reported = self._seen
        self._reported_ns = now_ns
        self.report(self.upstream, [self._seen[node] for node in sorted(self._seen)])


class RouteBrokers:
    """How the clients of one listener reach the brokers of a cluster. ``hosts``: the name of each broker, with ``{id}``; empty: the listener has a
    port for each broker. ``narrow``: an API or version that is not known is not passed.
    """

    def __init__(self, cluster: Cluster, advertised: AdvertisedBrokers, hosts: str = "", *, narrow: bool = True) -> None:
        self.cluster: Final = cluster
        self.narrow: Final = narrow
        self.rewriter: Final = AddressRewriter(advertised)  # replaces addresses in answers; ``rewriter.advertised`` may be replaced at any time
        prefix, _, suffix = hosts.lower().rstrip(".").partition("{id}")
        self._by_host: Final = bool(hosts)
        self._prefix: Final[str] = prefix
        self._suffix: Final[str] = suffix

    def broker_of(self, host: str) -> i64:
        """The node id in a TLS server name, in lower case and without a trailing dot; ``BOOTSTRAP`` if it is no name of a broker."""
        if not self._by_host or not host.startswith(self._prefix) or not host.endswith(self._suffix):
            return BOOTSTRAP
        text = host[len(self._prefix) : len(host) - len(self._suffix)]
        if not text.isdecimal() or not text.isascii() or len(text) > 10 or str(int(text)) != text or int(text) > _MOST_ID:
            return BOOTSTRAP
        return int(text)
