"""The listeners as they are: what is configured, and how many connections are open."""

from framegate.control.accept.acceptor import Acceptor
from framegate.control.errors import NotFoundError
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.status import ListenerStatus
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, forwarding_of

__all__ = ["Listeners", "find_listener"]


def find_listener(config: ProxyConfig, name: str) -> ListenerConfig:
    """One listener of a configuration. Raises NotFoundError."""
    for listener in config.listeners:
        if listener.name == name:
            return listener
    raise NotFoundError("listener", name)


class Listeners:
    """Shows them. ``acceptor.listeners`` is the truth; it is brought up to date first (``Connections.count_handed``)."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor

    def statuses(self) -> list[ListenerStatus]:
        """Every listener, in the configuration's order."""
        self._supervisor.connections.count_handed()
        return [self._status(name) for name in self._acceptor.listeners]

    def connections(self) -> int:
        """How many are open, of all listeners."""
        self._supervisor.connections.count_handed()
        return sum(listening.open for listening in self._acceptor.listeners.values())

    def _status(self, name: str) -> ListenerStatus:
        listening = self._acceptor.listeners[name]
        config = find_listener(self._supervisor.desired.config, name)
        return ListenerStatus(
            name=name,
            address=listening.address,
            upstream=config.upstream or "",
            handler=config.handler or "",
            protocol=config.protocol,
            framing=config.framing,
            tls=config.tls is not None,
            max_receive_size=config.max_receive_size,
            max_connections=config.limits.connections,
            connections=listening.open,
            accepting=listening.accepting,
            forwarding=forwarding_of(config),
        )
