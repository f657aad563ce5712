"""control.fleet.demands: what is asked of the rates in each processor."""

from typing import Any

from control.fleet.demands import Demand, Demands, RateKey
from proxy.server.messages import DemandRow


def row(name: str, passed: int, users: int) -> DemandRow:
    return DemandRow(level="address", name=name, counter="request_bytes", passed=passed, users=users)


def key(name: str) -> RateKey:
    return RateKey("address", name, "request_bytes")


def test_what_is_not_named_is_as_it_was_and_what_is_not_asked_is_forgotten() -> None:
    demands = Demands()
    one: Any = object()
    other: Any = object()
    demands.hear(one, [row("a", 5, 0), row("b", 6, 1000)])
    demands.hear(other, [row("a", 7, 0)])
    demands.hear(one, [row("b", 0, 1000), row("c", 1, 0)])
    assert demands.of(one) == {key("a"): Demand(5, 0), key("b"): Demand(0, 1000), key("c"): Demand(1, 0)}
    demands.hear(one, [row("a", 0, 0), row("never", 0, 0)])
    assert demands.of(one).keys() == {key("b"), key("c")}
    demands.forget(one)
    demands.forget(one)
    assert (demands.of(one), demands.of(other)) == ({}, {key("a"): Demand(7, 0)})
