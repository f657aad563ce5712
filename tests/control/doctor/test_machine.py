from pathlib import Path

import pytest

from framegate.control.doctor.machine import ClockState, kernel_clock, look_at_clock, look_at_kernel, stepped
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.limits import LimitsConfig
from framegate.proxy.config.model import KeepAlive, ListenerTimeouts, SocketConfig
from tests.fakes.surroundings import around, config_of, levels, one

NET = "proc/sys/net"
PORTS = {f"{NET}/ipv4/ip_local_port_range": "1000\t1099\n"}


def test_what_cannot_be_seen_is_said_of_each(tmp_path: Path) -> None:
    found = list(look_at_kernel(around(tmp_path)))
    assert set(levels(found)) == {"unknown"}
    assert len(found) == 10


def test_this_machines_own_can_be_read() -> None:
    found = list(look_at_kernel(Surroundings()))
    assert one(found, "somaxconn").figures["value"] != 0
    assert one(found, "overcommit").level in ("ok", "warning")


HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"


@pytest.mark.parametrize(
    ("files", "subject", "level"),
    [
        ({f"{NET}/ipv4/tcp_rmem": f"4096 131072 {(1 << 20) - 1}"}, "tcp_rmem", "warning"),
        ({f"{NET}/ipv4/tcp_wmem": f"4096 131072 {1 << 20}"}, "tcp_wmem", "ok"),
        ({"proc/sys/vm/overcommit_memory": "1"}, "overcommit", "ok"),
        ({"proc/sys/vm/overcommit_memory": "2"}, "overcommit", "warning"),
        ({HUGE_PAGES: "[always] madvise never"}, "huge pages", "warning"),
        ({HUGE_PAGES: "always [madvise] never"}, "huge pages", "ok"),
        ({f"{NET}/netfilter/nf_conntrack_max": "1000", f"{NET}/netfilter/nf_conntrack_count": "799"}, "nf_conntrack_max", "ok"),
        ({f"{NET}/netfilter/nf_conntrack_max": "1000", f"{NET}/netfilter/nf_conntrack_count": "800"}, "nf_conntrack_max", "warning"),
    ],
)
def test_a_setting_that_harms_is_told(tmp_path: Path, files: dict[str, str], subject: str, level: str) -> None:
    assert one(look_at_kernel(around(tmp_path, files)), subject).level == level


@pytest.mark.parametrize(
    ("connections", "endpoints", "level"), [(99, 1, "ok"), (100, 1, "ok"), (101, 1, "warning"), (200, 2, "ok"), (201, 2, "warning")]
)
def test_connections_to_one_address_need_a_port_each(tmp_path: Path, connections: int, endpoints: int, level: str) -> None:
    upstream = {"endpoints": tuple(f"10.0.0.{number}:9092" for number in range(endpoints))}
    config = config_of(upstream=upstream, limits=LimitsConfig(connections=connections))
    assert one(look_at_kernel(around(tmp_path, PORTS, config=config)), "ip_local_port_range").level == level


def test_a_unix_socket_and_connections_without_number_need_no_ports(tmp_path: Path) -> None:
    unix = config_of(upstream={"endpoints": ("unix:/x",)}, limits=LimitsConfig(connections=10**6))
    for config in (unix, config_of(), None):
        assert one(look_at_kernel(around(tmp_path, PORTS, config=config)), "ip_local_port_range").level == "ok"


@pytest.mark.parametrize(("idle_ms", "keep_alive", "told"), [(0, None, True), (0, KeepAlive(), False), (1, None, False), (1, KeepAlive(), False)])
def test_a_client_that_is_gone_without_a_word_must_be_found_somehow(tmp_path: Path, idle_ms: int, keep_alive: KeepAlive | None, told: bool) -> None:
    listener = {"timeouts": ListenerTimeouts(idle_ms=idle_ms), "socket": SocketConfig(keep_alive=keep_alive)}
    found = [item for item in look_at_kernel(around(tmp_path, config=config_of(listener=listener))) if "(in), keep-alive" in item.subject]
    assert levels(found) == (["warning"] if told else [])


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (ClockState(True, 0.02), "ok"),
        (ClockState(True, 1.0), "ok"),
        (ClockState(True, 1.001), "warning"),
        (ClockState(False, 0.0), "warning"),
    ],
)
def test_a_clock_that_is_not_known_for_right_is_told(tmp_path: Path, state: ClockState, level: str) -> None:
    found = one(look_at_clock(around(tmp_path), lambda: state, lambda: 0.0), "synchronisation")
    assert (found.level, found.figures["most_error_s"]) == (level, state.most_error_s)


def test_a_kernel_that_may_not_be_asked_is_said(tmp_path: Path) -> None:
    def refuse() -> ClockState:
        raise PermissionError(1, "Operation not permitted")

    assert levels(look_at_clock(around(tmp_path), refuse, lambda: 0.0)) == ["unknown", "ok"]


@pytest.mark.parametrize(("by", "level"), [(0.0, "ok"), (0.019, "ok"), (-0.019, "ok"), (0.02, "warning"), (-5.0, "warning")])
def test_a_clock_that_is_set_meanwhile_is_told(tmp_path: Path, by: float, level: str) -> None:
    assert one(look_at_clock(around(tmp_path), lambda: ClockState(True, 0.0), lambda: by), "steps").level == level


def test_a_step_is_what_one_clock_moved_more_than_the_other() -> None:
    wall, grown = [1000.0], [5.0]

    def wait(seconds: float) -> None:
        grown[0] += seconds
        wall[0] += seconds - 30

    assert stepped(wait, lambda: wall[0], lambda: grown[0]) == pytest.approx(-30)


def test_this_machines_kernel_is_asked() -> None:
    """Whatever it says: an error is below its own bound, which grows when nobody synchronises it."""
    assert 0 <= kernel_clock().most_error_s < 1e6
