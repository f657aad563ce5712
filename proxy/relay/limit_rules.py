"""The limit rules of a listener in a processor: which of them a connection matches, and the size that it may then send.

A connection is matched when its client is READY, when its client id is known, and when rules change (``Leg.match_limits``). No frame costs more.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.config import limits
from framegate.proxy.config.matching import address_matcher
from framegate.proxy.kafka.subjects import Patterns
from framegate.proxy.network.receive import ReceiveLimit

REPORT_NS: Final = 100_000_000  # a rule reports one frame in this time, at most; all are counted


def rates_key(listener: str, rule: str) -> str:
    """The name of the rates of a rule among those of all listeners."""
    return f"{listener}/{rule}"


class LimitRule:
    """One rule, compiled."""

    def __init__(self, rule: limits.LimitRule, key: str, limit: ReceiveLimit) -> None:
        self.name: Final = rule.name
        self.key: Final = key
        self.limit: Final = limit
        self.by_client: Final[bool] = len(rule.client_ids) > 0  # it asks for the client id
        self.report_ns: i64 = 0  # when the next frame may be reported, on the selector's clock
        self._principals: Final = Patterns(rule.principals) if rule.principals else None
        self._client_ids: Final = Patterns(rule.client_ids) if rule.client_ids else None
        self._networks: Final[list[Callable[[str], bool]]] = [address_matcher(network) for network in rule.networks]

    def may_match(self, peer: str, principal: str) -> bool:
        if self._principals is not None and not self._principals.match(principal):
            return False
        return not self._networks or any(matches(peer) for matches in self._networks)

    def matches_id(self, client_id: str) -> bool:
        return self._client_ids is None or self._client_ids.match(client_id)


class LimitRules:
    """The rules of one listener, in their order. They may be replaced at any time; then each open connection is to be matched again."""

    def __init__(self, listener: str, limit: ReceiveLimit) -> None:
        self.limit: Final = limit
        self.rules: list[LimitRule] = []  # in force
        self.by_client: bool = False  # a rule asks for the client id
        self._listener: Final = listener
        self._limits: dict[str, ReceiveLimit] = {}

    def put(self, rules: tuple[limits.LimitRule, ...]) -> None:
        """Replace the rules, and follow the listener's max_receive_size. The size of a rule that keeps its name changes at once for connections."""
        before, self._limits = self._limits, {}
        self.rules = [LimitRule(rule, rates_key(self._listener, rule.name), self._limit_of(rule, before)) for rule in rules]
        self.by_client = any(rule.by_client for rule in self.rules)

    def _limit_of(self, rule: limits.LimitRule, before: dict[str, ReceiveLimit]) -> ReceiveLimit:
        size = rule.max_receive_size
        if size is None:
            return self.limit
        limit = self._limits[rule.name] = before.get(rule.name) or ReceiveLimit(-1, rule.name)
        limit.value = min(size, self.limit.value) if rule.report_only else size
        limit.passed_to = self.limit.value if rule.report_only else -1
        return limit

    def choose(self, peer: str, principal: str, client_id: str | None) -> LimitRule | None:
        """The first rule that matches a client; None: none does, or the client id is not known (None) and the first that may match asks for it."""
        for rule in self.rules:
            if rule.may_match(peer, principal):
                if client_id is None and rule.by_client:
                    return None
                if client_id is None or rule.matches_id(client_id):
                    return rule
        return None
