"""The state that every processor must have: sent as a whole at its start, then as changes."""

import dataclasses
from typing import Final

from framegate.proxy.cells import CellLayout
from framegate.proxy.config.model import ProxyConfig, to_wire
from framegate.proxy.server.messages import Change, ClusterRow, Endpoints, StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION
from framegate.proxy.server.rows import StandingRow, Store, pack_stores

WHOLE: Final = 1_000_000


def default_part(count: int) -> int:
    """A processor's part of each rate for which it has no other part, in millionths, with ``count`` processors."""
    return WHOLE // max(count, 1)


@dataclasses.dataclass(slots=True)
class DesiredState:
    """What every processor must have."""

    config: ProxyConfig  # with all that was changed since the start
    endpoints: Endpoints  # addresses of each upstream, resolved
    shares: dict[int, int]  # bytes of the memory pool by slot
    revision: int = 1  # grows with every committed change
    # certificates, keys and authorities, by owner (``framegate.proxy.server.rows``): the last valid ones
    stores: dict[str, Store] = dataclasses.field(default_factory=dict, repr=False)
    rows_at_open: bool = False  # whether processors report each connection that opens, for the log or for telemetry
    request_sample: float = 0.0  # the share of Kafka requests that they report for a span
    retired: list[str] = dataclasses.field(default_factory=list)  # handler processes that get no connections any more, as processors call them
    brokers: dict[str, ClusterRow] = dataclasses.field(default_factory=dict)  # of each upstream that is a cluster, and what its listeners advertise
    failing: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)  # by upstream, the addresses that fail their checks, and why
    standing: list[StandingRow] = dataclasses.field(default_factory=list)  # what operators do to new connections
    layout: CellLayout = dataclasses.field(init=False, repr=False)  # of the counters of processors

    def __post_init__(self) -> None:
        self.layout = CellLayout.of(self.config, self.broker_ids())

    def broker_ids(self, other: dict[str, ClusterRow] | None = None) -> dict[str, list[int]]:
        """The node ids of the brokers of each cluster. ``other``: rows in place of those of these clusters."""
        return {name: [each["id"] for each in row["brokers"]] for name, row in {**self.brokers, **(other or {})}.items()}

    def addresses(self, upstream: str) -> list[list[str | int]]:
        """All addresses of an upstream: of its endpoints, or of a cluster's bootstrap servers and brokers."""
        brokers = self.brokers[upstream]["brokers"] if upstream in self.brokers else []
        return [*self.endpoints.get(upstream, []), *(address for broker in brokers for address in broker["addresses"])]

    def whole(self, slot: int) -> Change:
        change = Change(
            config=to_wire(self.config),
            cells=self.layout.wire,
            share=self.shares[slot],
            endpoints=self.endpoints,
            standing=self.standing,
            rows_at_open=self.rows_at_open,
            request_sample=self.request_sample,
        )
        if self.brokers:
            change["brokers"] = self.brokers
        if self.retired:
            change["retired"] = self.retired
        if self.failing:
            change["failing"] = self.failing
        if self.stores:
            change["stores"] = pack_stores(self.stores)
        return change

    def start_message(self, slot: int, generation: int, boot_id: str) -> StartMessage:
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
            cells=self.layout.wire,
            stores=pack_stores(self.stores),
            rows_at_open=self.rows_at_open,
            request_sample=self.request_sample,
        )
        if self.brokers:
            message["brokers"] = self.brokers
        if self.failing:
            message["failing"] = self.failing
        if self.standing:
            message["standing"] = self.standing
        return message
