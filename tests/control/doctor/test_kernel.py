from pathlib import Path

import pytest

from control.doctor.kernel import look
from control.doctor.surroundings import Surroundings
from proxy.config.limits import LimitsConfig
from proxy.config.model import KeepAlive, ListenerTimeouts, SocketConfig
from tests.fakes.surroundings import around, config_of, levels, one

NET = "proc/sys/net"
PORTS = {f"{NET}/ipv4/ip_local_port_range": "1000\t1099\n"}


def test_what_cannot_be_seen_is_said_of_each(tmp_path: Path) -> None:
    found = list(look(around(tmp_path)))
    assert set(levels(found)) == {"unknown"}
    assert len(found) == 10


def test_this_machines_own_can_be_read() -> None:
    found = list(look(Surroundings()))
    assert one(found, "somaxconn").figures["value"] != 0
    assert one(found, "overcommit").level in ("ok", "warning")


@pytest.mark.parametrize(("most", "level"), [((1 << 20) - 1, "warning"), (1 << 20, "ok"), ((1 << 20) + 1, "ok")])
@pytest.mark.parametrize("name", ["tcp_rmem", "tcp_wmem"])
def test_small_buffers_are_told(tmp_path: Path, name: str, most: int, level: str) -> None:
    found = one(look(around(tmp_path, {f"{NET}/ipv4/{name}": f"4096 131072 {most}"})), name)
    assert (found.level, found.figures) == (level, {"most_bytes": most})


@pytest.mark.parametrize(
    ("connections", "endpoints", "level"), [(99, 1, "ok"), (100, 1, "ok"), (101, 1, "warning"), (200, 2, "ok"), (201, 2, "warning")]
)
def test_connections_to_one_address_need_a_port_each(tmp_path: Path, connections: int, endpoints: int, level: str) -> None:
    upstream = {"endpoints": tuple(f"10.0.0.{number}:9092" for number in range(endpoints))}
    config = config_of(upstream=upstream, limits=LimitsConfig(connections=connections))
    assert one(look(around(tmp_path, PORTS, config=config)), "ip_local_port_range").level == level


def test_a_unix_socket_and_connections_without_number_need_no_ports(tmp_path: Path) -> None:
    unix = config_of(upstream={"endpoints": ("unix:/x",)}, limits=LimitsConfig(connections=10**6))
    for config in (unix, config_of(), None):
        assert one(look(around(tmp_path, PORTS, config=config)), "ip_local_port_range").level == "ok"


@pytest.mark.parametrize(("idle_ms", "keep_alive", "told"), [(0, None, True), (0, KeepAlive(), False), (1, None, False), (1, KeepAlive(), False)])
def test_a_client_that_is_gone_without_a_word_must_be_found_somehow(tmp_path: Path, idle_ms: int, keep_alive: KeepAlive | None, told: bool) -> None:
    listener = {"timeouts": ListenerTimeouts(idle_ms=idle_ms), "socket": SocketConfig(keep_alive=keep_alive)}
    found = [item for item in look(around(tmp_path, config=config_of(listener=listener))) if "(in), keep-alive" in item.subject]
    assert levels(found) == (["warning"] if told else [])


@pytest.mark.parametrize(("value", "level"), [(0, "ok"), (1, "ok"), (2, "warning")])
def test_strict_counting_of_memory_is_told(tmp_path: Path, value: int, level: str) -> None:
    assert one(look(around(tmp_path, {"proc/sys/vm/overcommit_memory": str(value)})), "overcommit").level == level


@pytest.mark.parametrize(
    ("text", "level"), [("[always] madvise never", "warning"), ("always [madvise] never", "ok"), ("always madvise [never]", "ok")]
)
def test_huge_pages_everywhere_are_told(tmp_path: Path, text: str, level: str) -> None:
    assert one(look(around(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})), "huge pages").level == level


@pytest.mark.parametrize(("count", "level"), [(799, "ok"), (800, "warning"), (801, "warning")])
def test_a_table_of_connections_that_is_nearly_full_is_told(tmp_path: Path, count: int, level: str) -> None:
    files = {f"{NET}/netfilter/nf_conntrack_max": "1000", f"{NET}/netfilter/nf_conntrack_count": str(count)}
    assert one(look(around(tmp_path, files)), "nf_conntrack_max").level == level
