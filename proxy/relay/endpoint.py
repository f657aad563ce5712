"""One address of an upstream, and its state: is it used, and if not, why. ``upstream`` changes it."""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.config.address import format_sockaddr
from framegate.proxy.relay.counters import EndpointCounters


class Endpoint:
    """One address of an upstream, and its state."""

    def __init__(
        self,
        family: int,
        address: object,
        server_name: str = "",
        broker: i64 = -1,
        *,
        weight: i64 = 1,
        zone: str = "",
        counters: EndpointCounters | None = None,
    ) -> None:
        # family, address: as ``socket.connect`` takes them
        self.family: Final = family
        self.address: Final = address
        self.server_name: Final = server_name  # the name that the certificate must have, and SNI unless it is an address; empty for plaintext
        self.broker: Final[i64] = broker  # the node id of the Kafka broker; -1: the bootstrap, or no cluster
        self.counters: EndpointCounters = counters or EndpointCounters()  # of all addresses of the endpoint as configured, or of the broker
        self.weight: i64 = weight  # its part of the connections, beside the weights of the others
        self.zone: str = zone  # as configured; ``near``: it is the node's own, or the node has none
        self.near: bool = True
        self.text: Final = format_sockaddr(family, address)  # the address as rows show it
        self.listed: bool = False  # it belongs to the upstream; False after it was replaced
        self.connections: i64 = 0  # open ones of this processor, and attempts; ``connecting``: the attempts
        self.connecting: i64 = 0
        self.current: i64 = 0  # the state of the weighted round robin (``upstream``)
        self.down: bool = False  # the last attempt failed, or it is ejected, and connections avoid it
        self.ejected: bool = False  # it is down because of ``ejection``, and one success does not end that
        self.failing: str = ""  # why the active checks of control say that it is out; empty: they do not
        self.probed: bool = False  # it is down, and a connection tries it now
        # down_ns, due_ns, backoff_ns: since when it is down, when it may be probed, and the time between these
        self.down_ns: i64 = 0
        self.due_ns: i64 = 0
        self.backoff_ns: i64 = 0
        self.answered_ns: i64 = 0  # when an attempt succeeded last; ``returned_ns``: when it came back last
        self.returned_ns: i64 = 0
        self.failures: i64 = 0  # attempts that failed since it is down
        self.errors: i64 = 0  # connections that failed, one after the other; ``successes``: those that did not, since it is ejected
        self.successes: i64 = 0
        # latency_ns, samples: the moving mean of the time until the first answer of a connection, and of how many
        self.latency_ns: i64 = 0
        self.samples: i64 = 0
        # ejected_ns, ejection_ns: when it was ejected last, and for how long
        self.ejected_ns: i64 = 0
        self.ejection_ns: i64 = 0
        # reason, detail: of the failure that took it down, or of the last failed probe
        self.reason: str = ""
        self.detail: str = ""
        # told, told_ns: whether a row has reported that it is down, and the time of the last such row
        self.told: bool = False
        self.told_ns: i64 = 0

    @property
    def key(self) -> tuple[str, int, object, int]:
        """The identity of an endpoint: its address, the expected server name and the broker."""
        return self.server_name, self.family, self.address, int(self.broker)

    @property
    def is_out(self) -> bool:
        """Whether connections avoid it."""
        return self.down or bool(self.failing)

    def is_due(self, now_ns: i64) -> bool:
        """Whether its back-off has passed and no connection tries it, so that nobody knows whether it can be reached now."""
        return self.down and not self.probed and now_ns >= self.due_ns
