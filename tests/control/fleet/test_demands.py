"""framegate.control.fleet.demands: what is asked of the rates in each processor."""

from typing import Any

from framegate.control.fleet.demands import Demand, Demands, RateKey
from framegate.proxy.server.rows import DemandRow


def row(name: str, used: int, waiting: int) -> DemandRow:
    return DemandRow(level="address", name=name, counter="request_bytes", used=used, waiting=waiting, wanting=waiting)


def key(name: str) -> RateKey:
    return RateKey("address", name, "request_bytes")


def test_what_was_told_of_is_taken_once_with_what_each_said_last() -> None:
    demands = Demands()
    one: Any = object()
    other: Any = object()
    demands.hear(one, [row("a", 5, 0), row("b", 6, 1000)])
    demands.hear(other, [row("a", 7, 0)])
    demands.hear(one, [row("b", 0, 900)])
    assert demands.take() == {key("a"): {one: Demand(5), other: Demand(7)}, key("b"): {one: Demand(0, 900, 900)}}
    assert demands.take() == {}
    demands.hear(other, [row("b", 1, 0)])
    assert demands.take() == {key("b"): {one: Demand(0, 900, 900), other: Demand(1)}}


def test_nothing_is_kept_of_what_is_dropped_or_of_who_is_gone() -> None:
    demands = Demands()
    one: Any = object()
    other: Any = object()
    demands.hear(one, [row("a", 5, 0), row("b", 6, 1000)])
    demands.hear(other, [row("b", 7, 0)])
    demands.forget(one)
    demands.forget(one)
    assert demands.take() == {key("b"): {other: Demand(7)}}
    demands.drop(key("b"))
    assert demands._of == {}
    demands.hear(one, [row("a", 5, 0)])
    demands.clear()
    assert (demands.take(), demands._of) == ({}, {})
