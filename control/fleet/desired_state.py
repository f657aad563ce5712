"""The state that every processor must have: sent as a whole at its start, then as changes."""

import dataclasses
from typing import Final, cast

from framegate.proxy.config.model import ProxyConfig, kafka_rules_to_wire, quotas_to_wire, rules_to_wire, to_wire
from framegate.proxy.server.messages import Change, ClusterRow, Endpoints, StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION
from framegate.proxy.server.rows import LimitsRow, StandingRow, Store, pack_stores

__all__ = ["DesiredState", "default_part"]

WHOLE: Final = 1_000_000


def default_part(count: int) -> int:
    """A processor's part of each rate for which it has no other part, in millionths, with ``count`` processors."""
    return WHOLE // max(count, 1)


@dataclasses.dataclass(slots=True)
class DesiredState:
    """What every processor must have.

    Attributes:
        config: with the limits, the pool size, the tap's rules and those about Kafka in force.
        endpoints: addresses of each upstream, resolved.
        brokers: of each upstream that is a cluster, and what its listeners advertise.
        failing: by upstream, the addresses that fail their checks, and why.
        standing: what operators do to new connections.
        shares: bytes of the memory pool by slot.
        stores: certificates, keys and authorities, by owner (``framegate.proxy.server.rows``): the last valid ones.
        revision: grows with every committed change.
        rows_at_open: whether processors report each connection that opens, for the log or for telemetry.
    """

    config: ProxyConfig
    endpoints: Endpoints
    shares: dict[int, int]
    revision: int = 1
    stores: dict[str, Store] = dataclasses.field(default_factory=dict, repr=False)
    rows_at_open: bool = False
    brokers: dict[str, ClusterRow] = dataclasses.field(default_factory=dict)
    failing: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    standing: list[StandingRow] = dataclasses.field(default_factory=list)

    def whole(self, slot: int) -> Change:
        """The whole state as one change, for one slot."""
        limits = {listener.name: listener.max_receive_size for listener in self.config.listeners}
        quotas = cast(LimitsRow, quotas_to_wire(self.config))
        change = Change(max_receive_size=limits, limits=quotas, share=self.shares[slot], endpoints=self.endpoints, standing=self.standing)
        if self.brokers:
            change["brokers"] = self.brokers
        if self.failing:
            change["failing"] = self.failing
        if self.stores:
            change["stores"] = pack_stores(self.stores)
        if rules := {item.name: kafka_rules_to_wire(item.kafka) for item in self.config.listeners if item.kafka is not None}:
            change["kafka_rules"] = rules
        if self.config.tap is not None:
            change["tap_rules"] = rules_to_wire(self.config.tap.rules)
        return change

    def start_message(self, slot: int, generation: int, boot_id: str) -> StartMessage:
        """What a processor starts with."""
        message = StartMessage(
            type="start",
            wire=WIRE_VERSION,
            config=to_wire(self.config),
            slot=slot,
            generation=generation,
            boot_id=boot_id,
            share=self.shares[slot],
            part=default_part(len(self.shares)),
            endpoints=self.endpoints,
            stores=pack_stores(self.stores),
            rows_at_open=self.rows_at_open,
        )
        if self.brokers:
            message["brokers"] = self.brokers
        if self.failing:
            message["failing"] = self.failing
        if self.standing:
            message["standing"] = self.standing
        return message
