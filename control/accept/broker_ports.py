"""Which port of a listener's range each broker of a cluster has (``brokers.ports``)."""

from collections.abc import Iterable

from framegate.control.configuration.broker_rules import port_range
from framegate.proxy.config.model import BrokersConfig


class BrokerPorts:
    """The ports of one listener. By ``node_id``, a broker has the first port plus its node id. By ``order``, brokers get the ports in the order in
    which they are found, and keep them for the life of the process; the port of a broker that is gone is given to another one when no other is left,
    the longest gone first.
    """

    def __init__(self, config: BrokersConfig) -> None:
        self.ports = port_range(config.ports)
        self._by_id = config.by == "node_id"
        self._assigned: dict[int, int] = {}  # by node, in the order of discovery
        self._gone: dict[int, None] = {}  # nodes, the longest gone first

    def assign(self, nodes: Iterable[int]) -> dict[int, int]:
        """The port of each of the brokers that there are now, by node id; a broker without one is missing."""
        present = set(nodes)
        if self._by_id:
            return {node: self.ports[node] for node in sorted(present) if node < len(self.ports)}
        for node in self._assigned.keys() - present:
            self._gone.setdefault(node)
        for node in present:
            self._gone.pop(node, None)
        for node in sorted(present - self._assigned.keys()):
            if len(self._assigned) < len(self.ports):
                self._assigned[node] = self.ports[len(self._assigned)]
            elif self._gone:
                gone = next(iter(self._gone))
                del self._gone[gone]
                self._assigned[node] = self._assigned.pop(gone)
        return {node: port for node, port in self._assigned.items() if node in present}
