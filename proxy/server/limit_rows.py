"""Quotas as they stand in messages of the link: what they are, which part of a rate a processor has, and what is asked of it."""

from typing import Literal, TypedDict

__all__ = ["DemandRow", "LimitsRow", "OverrideRow", "PartRow", "RateCounter", "RateLevel", "RateRow"]

RateLevel = Literal["node", "listener", "address"]
RateCounter = Literal["request_bytes", "request_frames", "response_bytes", "response_frames"]


class RateRow(TypedDict):
    """Quotas, of ``proxy.config.limits.RateLimits``. 0 is unlimited."""

    connections: int
    connection_rate: int
    request_bytes_rate: int
    response_bytes_rate: int
    request_frames_rate: int
    response_frames_rate: int


class OverrideRow(TypedDict):
    """Quotas of the addresses of a network, of ``proxy.config.limits.LimitOverride``. None: as ``per_address``."""

    network: str
    access: Literal["allow", "deny"]
    connections: int | None
    connection_rate: int | None
    request_bytes_rate: int | None
    response_bytes_rate: int | None
    request_frames_rate: int | None
    response_frames_rate: int | None


class LimitsRow(TypedDict):
    """All quotas; ``proxy.config.limits`` makes (``limits_to_wire``) and reads (``limits_from_wire``) it. ``listeners``: every one, by name."""

    node: RateRow
    listeners: dict[str, RateRow]
    per_address: RateRow
    overrides: list[OverrideRow]


class PartRow(TypedDict):
    """Millionths of one rate; -1: as of keys that are not named. ``name`` is empty for the node."""

    level: RateLevel
    name: str
    counter: RateCounter
    part: int


class DemandRow(TypedDict):
    """What was asked of one rate.

    Attributes:
        used: millionths of it.
        waiting: how many connections waited for it, on average, in thousandths; 0: hardly any.
        wanting: likewise, for it or for another that holds for them, too.
    """

    level: RateLevel
    name: str
    counter: RateCounter
    used: int
    waiting: int
    wanting: int
