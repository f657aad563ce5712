from pathlib import Path

import pytest

from control.doctor.names import Resolver, look, resolver_of
from tests.fakes.surroundings import around, config_of, levels, one

CLUSTER = "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Resolver((), (), 1)),
        (CLUSTER, Resolver(("10.96.0.10",), ("default.svc.cluster.local", "svc.cluster.local", "cluster.local"), 5)),
        ("domain a\nsearch b c\n# nameserver 1.1.1.1\nnameserver ::1 ; x\n", Resolver(("::1",), ("b", "c"), 1)),
        ("options timeout:1 ndots:3\noptions ndots:x\nnameserver\n", Resolver((), (), 3)),
        ("options ndots:99\n", Resolver((), (), 15)),
    ],
)
def test_the_file_is_read_as_the_resolver_reads_it(text: str, expected: Resolver) -> None:
    assert resolver_of(text) == expected


@pytest.mark.parametrize(("servers", "level"), [(3, "ok"), (4, "warning")])
def test_servers_that_nobody_asks_are_told(tmp_path: Path, servers: int, level: str) -> None:
    assert levels(look(around(tmp_path, {"etc/resolv.conf": "nameserver 10.0.0.1\n" * servers}))) == [level]


def test_without_the_file_nothing_is_known(tmp_path: Path) -> None:
    assert levels(look(around(tmp_path, config=config_of("broker.example.org:9092")))) == ["unknown"]


@pytest.mark.parametrize(
    ("host", "searched", "level"),
    [
        ("broker.example.org", 3, "warning"),
        ("broker.example.org.", 0, "ok"),
        ("a.b.c.d.e.example", 0, "ok"),  # five dots
        ("a.b.c.d.example", 3, "warning"),  # four
        ("broker", 3, "ok"),  # the search is meant
        ("broker.kafka.svc", 3, "ok"),
        ("broker.kafka.svc.cluster.local", 3, "ok"),
    ],
)
def test_a_whole_name_that_is_searched_for_first_is_told(tmp_path: Path, host: str, searched: int, level: str) -> None:
    found = one(look(around(tmp_path, {"etc/resolv.conf": CLUSTER}, config=config_of(f"{host}:9092"))), host)
    assert (found.level, found.figures["searched"]) == (level, searched)


def test_a_short_search_costs_nobody_much(tmp_path: Path) -> None:
    files = {"etc/resolv.conf": "search a b\noptions ndots:5\n"}
    assert levels(look(around(tmp_path, files, config=config_of("broker.example.org:9092")))) == ["ok", "ok"]
