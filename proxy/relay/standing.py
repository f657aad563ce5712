"""What operators do to new connections: standing actions, each with the conditions for the connections that it is for."""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

MUTE: Final = "mute"
CLOSE: Final = "close"


class Condition:
    """One condition about a client: its ``listener``, ``address``, ``principal`` or ``client_id`` matches, or does not."""

    def __init__(self, field: str, matches: Callable[[str], bool], *, negated: bool) -> None:
        self.field: Final = field
        self.matches: Final = matches
        self.negated: Final = negated


class Standing:
    """One standing action.

    Args:
        verb: ``mute``, ``close`` or ``throttle``.
        request, response: of ``throttle``: bytes per second; 0: no limit.
        conditions: all of them must hold.
    """

    def __init__(self, number: i64, verb: str, reason: str, request: i64, response: i64, conditions: list[Condition]) -> None:
        self.number: Final[i64] = number
        self.verb: Final = verb
        self.reason: Final = reason
        self.request: Final[i64] = request
        self.response: Final[i64] = response
        # it waits for the client id, if the connection is one of Kafka
        self.by_client: Final[bool] = "client_id" in [item.field for item in conditions]
        self._conditions: Final = conditions

    def is_for(self, listener: str, peer: str, principal: str, client_id: str) -> bool:
        facts = {"listener": listener, "address": peer, "principal": principal, "client_id": client_id}
        return all(item.matches(facts[item.field]) != item.negated for item in self._conditions)
