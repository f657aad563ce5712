"""framegate.control.accept.quotas, on a stepped clock; numbers are those of the reference's list of what Kafka's layer does."""

import dataclasses

import pytest

from framegate.control.accept.quotas import REFUSALS, WAITS, ConnectionQuotas
from framegate.proxy.cells import METRICS
from framegate.proxy.config.limits import UNLIMITED, LimitOverride, LimitsConfig, RateLimits, limits_in_force
from tests.fakes.cases import each_of

SECOND = 1_000_000_000
START = 50 * SECOND
DENY = LimitOverride(network="0.0.0.0/0", access="deny")


class Door:
    """Quotas with a clock, asked as the acceptor asks."""

    def __init__(self, limits: LimitsConfig, **listeners: RateLimits) -> None:
        self.limits = limits
        self.listeners = listeners or {"a": UNLIMITED, "b": UNLIMITED}
        self.quotas = ConnectionQuotas(limits_in_force(limits, self.listeners), limits.protected_listener)
        self.now_ns = START

    def connect(self, listener: str = "a", key: str = "10.0.0.1") -> str:
        wait = self.quotas.wait(listener, self.now_ns)
        if wait is not None:
            return wait.reason
        refusal = self.quotas.check(key, self.now_ns)
        if refusal is not None:
            return refusal.reason
        self.quotas.take(listener, key, self.now_ns)
        return "taken"

    def many(self, count: int, listener: str = "a", key: str = "10.0.0.1") -> list[str]:
        return [self.connect(listener, key) for _ in range(count)]

    def close(self, listener: str = "a", key: str = "10.0.0.1") -> None:
        self.quotas.give_back(listener, key, self.now_ns)

    def change(self, listeners: dict[str, RateLimits] | None = None, **limits: object) -> None:
        """Put other limits in force."""
        self.limits = dataclasses.replace(self.limits, **limits)  # type: ignore[arg-type]
        self.listeners = {**self.listeners, **(listeners or {})}
        self.quotas.limits = limits_in_force(self.limits, self.listeners)

    def flood(self, seconds: float, listener: str = "a", key: str = "", step_ms: int = 1) -> list[int]:
        """Try at every step, as often as it is taken; when each was, in ns since the flood began."""
        began, taken = self.now_ns, []
        while self.now_ns < began + seconds * SECOND:
            while self.connect(listener, key or f"10.0.{len(taken) // 256 % 256}.{len(taken) % 256}") == "taken":
                taken.append(self.now_ns - began)
            self.now_ns += step_ms * 1_000_000
        return taken


def per_address(**limits: int) -> LimitsConfig:
    return LimitsConfig(per_address=RateLimits(**limits))


def test_one_more_than_an_address_may_have_is_refused_until_one_is_closed() -> None:
    """Number 182."""
    door = Door(per_address(connections=3))
    assert door.many(5) == ["taken"] * 3 + ["address_connections"] * 2
    assert door.many(3, key="10.0.0.2") == ["taken"] * 3, "another address is another count"
    assert door.connect("b") == "address_connections", "listeners count together"
    assert door.quotas.of_address("10.0.0.1") == 3, "who is refused is not counted"
    door.close()
    assert door.many(2) == ["taken", "address_connections"]


def test_nobody_but_who_has_an_override() -> None:
    """Number 183: Kafka's 0 for each address with an override of 5 is a denied network here."""
    door = Door(LimitsConfig(overrides=(DENY, LimitOverride(network="127.0.0.1/32", connections=5))))
    assert door.many(6, key="127.0.0.1") == ["taken"] * 5 + ["address_connections"]
    assert door.connect(key="127.0.0.2") == "address_denied"
    assert door.quotas.check("127.0.0.2", START) == ("address_denied", "limits.overrides[0.0.0.0/0].access", 0)
    assert door.connect(key="2001:db8::/64") == "taken", "an IPv4 network denies no IPv6"


def test_without_limits_nobody_waits() -> None:
    """Number 184."""
    door = Door(LimitsConfig())
    for listener in ("a", "b"):
        assert set(door.many(10_000, listener)) == {"taken"}
    assert not door.quotas.limited("a")
    assert (door.quotas.open("a"), door.quotas.open()) == (10_000, 20_000)


def test_as_many_as_the_node_may_have_and_the_next_one_waits_for_a_close() -> None:
    """Number 185: exactly as many is not too many."""
    door = Door(LimitsConfig(connections=10))
    assert door.many(4, "a") + door.many(6, "b") == ["taken"] * 10
    assert [door.connect("a"), door.connect("b")] == ["node_connections"] * 2
    wait = door.quotas.wait("a", START)
    assert wait is not None
    assert (wait.key, wait.until_ns) == ("limits.connections", 0), "only a close, or a change, lets it go on"
    door.close("b")
    assert [door.connect("a"), door.connect("b")] == ["taken", "node_connections"]


def test_the_protected_listener_passes_the_nodes_limit_and_others_wait_until_there_is_room() -> None:
    """Number 186."""
    door = Door(LimitsConfig(connections=5, protected_listener="b"))
    door.many(5, "a")
    assert door.many(3, "b") == ["taken"] * 3
    for _ in range(3):
        assert door.connect("a") == "node_connections"
        door.close("b")
    assert door.connect("a") == "node_connections"
    door.close("a")
    assert door.many(2, "a") == ["taken", "node_connections"]


def test_a_listeners_own_limit_holds_the_protected_one_too() -> None:
    """Number 187."""
    door = Door(LimitsConfig(connections=5, protected_listener="b"), a=UNLIMITED, b=RateLimits(connections=2, connection_rate=100))
    assert door.many(3, "b") == ["taken", "taken", "listener_connections"]
    wait = door.quotas.wait("b", START)
    assert wait is not None
    assert wait.key == "listeners[b].limits.connections"
    assert door.connect("a") == "taken"
    door.change({"b": RateLimits(connection_rate=3)})
    assert door.many(4, "b") == ["taken", "taken", "listener_connection_rate", "listener_connection_rate"]
    assert door.quotas.limited("b")


def settled(taken: list[int], rate: int, seconds: int) -> None:
    """Never more than a second's worth ahead, and then the rate to 5 %, second by second."""
    assert sum(at == 0 for at in taken) == max(1, rate), "after a pause a second's worth passes at once"
    for second in range(1, seconds):
        count = sum(second * SECOND <= at < (second + 1) * SECOND for at in taken)
        assert abs(count - rate) <= max(1, rate * 0.05), f"{count} in second {second}"
    assert abs(len(taken) - rate * (seconds + 1)) <= max(1, rate * 0.05)


@each_of("rate", [1, 3, 20, 300])
def test_a_rate_settles_at_what_it_is(rate: int) -> None:
    """Number 188: below it nobody waits, above it who comes settles at it."""
    for door, reason in (
        (Door(LimitsConfig(connection_rate=rate)), "node_connection_rate"),
        (Door(LimitsConfig(), a=RateLimits(connection_rate=rate)), "listener_connection_rate"),
        (Door(per_address(connection_rate=rate)), "address_connection_rate"),
    ):
        settled(door.flood(5, key="10.0.0.1"), rate, 5)
        assert door.many(2)[-1] == reason
        slow = [door.connect() for door.now_ns in range(100 * SECOND, 103 * SECOND, SECOND // rate)]
        assert set(slow) == {"taken"}


def test_the_nodes_rate_holds_all_but_the_protected_listener_which_takes_nothing_of_it() -> None:
    """Number 188."""
    door = Door(LimitsConfig(connection_rate=5, protected_listener="b"), a=UNLIMITED, b=UNLIMITED, c=UNLIMITED)
    assert set(door.many(50, "b")) == {"taken"}
    assert door.many(3, "a") + door.many(3, "c") == ["taken"] * 5 + ["node_connection_rate"]
    assert set(door.many(50, "b")) == {"taken"}
    assert not door.quotas.limited("b")


def test_the_longer_of_two_waits_is_the_one() -> None:
    door = Door(LimitsConfig(connection_rate=2), a=RateLimits(connection_rate=1))
    door.many(1)
    assert door.quotas.wait("a", START) == ("listener_connection_rate", "listeners[a].limits.connection_rate", START + SECOND)
    door = Door(LimitsConfig(connection_rate=1), a=RateLimits(connection_rate=2))
    door.many(1)
    assert door.quotas.wait("a", START) == ("node_connection_rate", "limits.connection_rate", START + SECOND)
    assert door.quotas.wait("a", START + SECOND) is None


def test_an_address_that_comes_too_often_takes_nothing_of_any_rate() -> None:
    """Number 189."""
    door = Door(LimitsConfig(connection_rate=10, per_address=RateLimits(connection_rate=2)), a=RateLimits(connection_rate=9))
    assert door.many(100) == ["taken"] * 2 + ["address_connection_rate"] * 98
    assert door.quotas.check("10.0.0.1", START) == ("address_connection_rate", "limits.per_address.connection_rate", SECOND // 2)
    others = [door.connect(key=f"10.0.0.{number}") for number in range(2, 10)]
    assert others == ["taken"] * 7 + ["listener_connection_rate"], "9 - 2 were left of the listener's rate"
    door.now_ns += SECOND // 2
    assert door.many(2) == ["taken", "address_connection_rate"], "the hundred that were refused count for nothing"


def test_an_address_beyond_its_count_cannot_try_without_end() -> None:
    door = Door(per_address(connections=1, connection_rate=3))
    assert door.many(5) == ["taken"] + ["address_connections"] * 2 + ["address_connection_rate"] * 2
    assert door.connect("b", "10.0.0.2") == "taken"


def test_an_override_survives_a_change_of_what_others_may_and_falls_back_when_it_goes() -> None:
    """Number 191."""
    door = Door(LimitsConfig(per_address=RateLimits(connections=1), overrides=(LimitOverride(network="10.1.0.0/16", connections=2),)))
    assert door.many(2) == ["taken", "address_connections"]
    assert door.many(3, key="10.1.0.1") == ["taken", "taken", "address_connections"]
    door.change(per_address=RateLimits(connections=3))
    assert door.many(3) == ["taken", "taken", "address_connections"]
    assert door.connect(key="10.1.0.1") == "address_connections"
    door.change(overrides=())
    assert door.many(2, key="10.1.0.1") == ["taken", "address_connections"]
    door.change(overrides=(LimitOverride(network="10.0.0.0/8", connection_rate=1),))
    door.close(key="10.1.0.1")
    assert door.many(2, key="10.1.0.1") == ["taken", "address_connection_rate"], "what an override does not give is as for others"


def test_a_change_is_for_the_next_connection() -> None:
    """Number 192: nothing that is open is touched, and what was taken of a rate stays taken."""
    door = Door(LimitsConfig(connections=2))
    assert door.many(3) == ["taken", "taken", "node_connections"]
    door.change(connections=3)
    assert door.many(2) == ["taken", "node_connections"]
    door.change(connections=1)
    for _ in range(2):
        door.close()
        assert door.connect() == "node_connections"
    door.close()
    assert door.connect() == "taken"
    door.change(connections=0)
    assert set(door.many(100)) == {"taken"}
    door.change(connection_rate=10)
    assert door.many(11)[-1] == "node_connection_rate"
    door.change(connection_rate=20)
    assert door.quotas.wait("a", START) == ("node_connection_rate", "limits.connection_rate", START + SECOND // 20)
    door.change(connection_rate=1)
    assert door.quotas.wait("a", START) == ("node_connection_rate", "limits.connection_rate", START + SECOND)
    door.change(connection_rate=0)
    assert set(door.many(100)) == {"taken"}


def test_a_listener_without_limits_has_none_and_what_was_never_taken_is_our_bug() -> None:
    """Number 193."""
    door = Door(LimitsConfig())
    door.connect("c")
    assert (door.quotas.open("c"), door.quotas.limited("c")) == (1, False)
    door.close("c")
    with pytest.raises(KeyError):
        door.close("c")
    with pytest.raises(KeyError, match=r"no connection of 10\.0\.0\.1 is open at a"):
        door.close()
    door.connect()
    with pytest.raises(KeyError):
        door.close("b")
    with pytest.raises(KeyError):
        door.close("a", "10.0.0.2")
    door.close()
    with pytest.raises(KeyError):
        door.close()
    assert (door.quotas.open(), door.quotas.of_address("10.0.0.1")) == (0, 0)


def test_clients_without_an_address_are_held_by_the_node_and_the_listener_only() -> None:
    door = Door(LimitsConfig(connections=5, per_address=RateLimits(connections=1, connection_rate=1), overrides=(DENY,)))
    assert door.many(6, key="") == ["taken"] * 5 + ["node_connections"]
    door.close(key="")
    assert door.connect(key="") == "taken"


def test_addresses_are_forgotten_when_they_have_nothing_open_and_their_rate_has_rested() -> None:
    door = Door(per_address(connection_rate=2))
    for number in range(1000):
        key = f"10.0.{number // 250}.{number % 250}"
        assert door.many(3, key=key) == ["taken", "taken", "address_connection_rate"]
        door.close(key=key)
    assert door.quotas.addresses == 1000
    for number in range(1000):
        door.close(key=f"10.0.{number // 250}.{number % 250}")
    assert door.quotas.addresses == 1000, "each has just come twice"
    door.now_ns += SECOND // 2
    assert door.connect(key="10.0.0.0") == "taken"
    for _ in range(2):
        door.now_ns += SECOND
        door.quotas.check("10.9.9.9", door.now_ns)
    assert door.quotas.addresses == 2, "one that is open, and who asked last"


def test_the_words_are_those_of_the_metrics() -> None:
    reasons = {metric.name: dict(metric.attributes).get("framegate.reason", ()) for metric in METRICS}
    assert reasons["framegate.accept.limited.time"] == WAITS
    assert reasons["framegate.connection.rejected"] == (*REFUSALS, "draining")
