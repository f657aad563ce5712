from pathlib import Path
from typing import Any

import pytest

from framegate.control.doctor.machine import ClockState, kernel_clock, look_at_clock, look_at_kernel, stepped
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.limits import LimitsConfig
from framegate.proxy.config.model import KeepAlive, ListenerTimeouts, ProxyConfig, SocketConfig
from tests.fakes.surroundings import around, config_of, levels, one

NET = "proc/sys/net"
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


def test_settings_that_cannot_be_seen_are_unknown_and_those_of_this_machine_can(tmp_path: Path) -> None:
    assert levels(look_at_kernel(around(tmp_path))) == ["unknown"] * 6
    found = list(look_at_kernel(Surroundings()))
    assert one(found, "overcommit").level in ("ok", "warning")


def test_a_harmful_setting_is_a_warning(tmp_path: Path) -> None:
    wrong = []
    for number, (files, subject, level) in enumerate(
        (
            ({f"{NET}/ipv4/tcp_rmem": f"4096 131072 {(1 << 20) - 1}"}, "tcp_rmem", "warning"),
            ({f"{NET}/ipv4/tcp_wmem": f"4096 131072 {1 << 20}"}, "tcp_wmem", "ok"),
            ({"proc/sys/vm/overcommit_memory": "1"}, "overcommit", "ok"),
            ({"proc/sys/vm/overcommit_memory": "2"}, "overcommit", "warning"),
            ({HUGE_PAGES: "[always] madvise never"}, "huge pages", "warning"),
            ({HUGE_PAGES: "always [madvise] never"}, "huge pages", "ok"),
            ({f"{NET}/netfilter/nf_conntrack_max": "1000", f"{NET}/netfilter/nf_conntrack_count": "799"}, "nf_conntrack_max", "ok"),
            ({f"{NET}/netfilter/nf_conntrack_max": "1000", f"{NET}/netfilter/nf_conntrack_count": "800"}, "nf_conntrack_max", "warning"),
        )
    ):
        found = one(look_at_kernel(around(tmp_path / str(number), files)), subject)
        wrong += [(files, found)] * (found.level != level)
    assert wrong == []


def test_each_connection_to_one_address_needs_a_port(tmp_path: Path) -> None:
    def level(config: ProxyConfig | None) -> str:
        return one(look_at_kernel(around(tmp_path, {f"{NET}/ipv4/ip_local_port_range": "1000\t1099\n"}, config=config)), "ip_local_port_range").level

    expected = {(99, 1): "ok", (100, 1): "ok", (101, 1): "warning", (200, 2): "ok", (201, 2): "warning"}
    found = {}
    for connections, count in expected:
        upstream = {"endpoints": tuple(f"10.0.0.{number}:9092" for number in range(count))}
        found[connections, count] = level(config_of(upstream=upstream, limits=LimitsConfig(connections=connections)))
    assert found == expected
    unix = config_of(upstream={"endpoints": ("unix:/x",)}, limits=LimitsConfig(connections=10**6))
    assert [level(config) for config in (unix, config_of(), None)] == ["ok"] * 3


def test_without_idle_expiry_and_keep_alive_a_lost_client_is_never_found(tmp_path: Path) -> None:
    cases: list[tuple[int, KeepAlive | None, Any]] = [(0, None, ["warning"]), (0, KeepAlive(), []), (1, None, []), (1, KeepAlive(), [])]
    for idle_ms, keep_alive, expected in cases:
        listener = {"timeouts": ListenerTimeouts(idle_ms=idle_ms), "socket": SocketConfig(keep_alive=keep_alive)}
        found = look_at_kernel(around(tmp_path, config=config_of(listener=listener)))
        assert levels(item for item in found if "(in), keep-alive" in item.subject) == expected, (idle_ms, keep_alive)


def test_a_clock_is_synchronised_to_a_second_and_not_set_in_steps(tmp_path: Path) -> None:
    steady = ClockState(True, 0.0)
    states = {ClockState(True, 0.02): "ok", ClockState(True, 1.0): "ok", ClockState(True, 1.001): "warning", ClockState(False, 0.0): "warning"}
    for state, level in states.items():
        found = one(look_at_clock(around(tmp_path), lambda state=state: state, lambda: 0.0), "synchronisation")
        assert (found.level, found.figures["most_error_s"]) == (level, state.most_error_s)
    steps = {0.0: "ok", 0.019: "ok", -0.019: "ok", 0.02: "warning", -5.0: "warning"}
    assert {by: one(look_at_clock(around(tmp_path), lambda: steady, lambda by=by: by), "steps").level for by in steps} == steps

    def refuse() -> ClockState:
        raise PermissionError(1, "Operation not permitted")

    assert levels(look_at_clock(around(tmp_path), refuse, lambda: 0.0)) == ["unknown", "ok"]
    assert 0 <= kernel_clock().most_error_s < 1e6, "of this machine; without synchronisation it grows up to a bound"


def test_a_step_is_what_one_clock_moved_more_than_the_other() -> None:
    wall, grown = [1000.0], [5.0]

    def wait(seconds: float) -> None:
        grown[0] += seconds
        wall[0] += seconds - 30

    assert stepped(wait, lambda: wall[0], lambda: grown[0]) == pytest.approx(-30)
