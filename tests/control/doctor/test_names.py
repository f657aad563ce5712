import threading
import time
from collections.abc import Iterable
from pathlib import Path
from socket import AF_INET, AF_INET6, gaierror

import pytest

from framegate.control.doctor import names
from framegate.control.doctor.names import Lookups, Resolver, literal_addresses, look, resolver_of
from tests.fakes.surroundings import around, config_of, levels, one

CLUSTER = "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"


def test_the_file_is_read_as_the_resolver_reads_it() -> None:
    expected = {
        "": Resolver((), (), 1),
        CLUSTER: Resolver(("10.96.0.10",), ("default.svc.cluster.local", "svc.cluster.local", "cluster.local"), 5),
        "domain a\nsearch b c\n# nameserver 1.1.1.1\nnameserver ::1 ; x\n": Resolver(("::1",), ("b", "c"), 1),
        "options timeout:1 ndots:3\noptions ndots:x\nnameserver\n": Resolver((), (), 3),
        "options ndots:99\n": Resolver((), (), 15),
    }
    assert {text: resolver_of(text) for text in expected} == expected


def test_servers_that_are_never_asked_are_a_warning_and_a_short_search_is_none(tmp_path: Path) -> None:
    for servers, level in ((3, "ok"), (4, "warning")):
        assert levels(look(around(tmp_path, {"etc/resolv.conf": "nameserver 10.0.0.1\n" * servers}))) == [level]
    assert levels(look(around(tmp_path / "none", config=config_of("broker.example.org:9092")))) == ["unknown"]
    files = {"etc/resolv.conf": "search a b\noptions ndots:5\n"}
    assert levels(look(around(tmp_path / "short", files, config=config_of("broker.example.org:9092")))) == ["ok", "ok"]


def test_a_whole_name_that_is_searched_for_first_is_a_warning(tmp_path: Path) -> None:
    expected = {
        "broker.example.org": (3, "warning"),
        "broker.example.org.": (0, "ok"),
        "a.b.c.d.e.example": (0, "ok"),  # five dots
        "a.b.c.d.example": (3, "warning"),  # four
        "broker": (3, "ok"),  # the search is meant
        "broker.kafka.svc": (3, "ok"),
        "broker.kafka.svc.cluster.local": (3, "ok"),
    }
    found = {host: one(look(around(tmp_path, {"etc/resolv.conf": CLUSTER}, config=config_of(f"{host}:9092"))), host) for host in expected}
    assert {host: (item.figures["searched"], item.level) for host, item in found.items()} == expected


def answer(host: str, port: int) -> Iterable[tuple[int, str]]:
    if host == "nowhere":
        raise gaierror(-2, "Name or service not known")
    return [(AF_INET, "10.0.0.1"), (AF_INET6, "fd00::1")]


def test_each_name_is_shown_with_its_addresses_and_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(upstream={"endpoints": ("broker:9092", "broker:9093", "10.0.0.9:1", "unix:/x")})
    looked = Lookups(around(tmp_path, config=config), answer)
    (found,) = looked.look()
    assert (found.level, found.figures["addresses"]) == ("ok", 2)
    assert found.found.startswith("is 10.0.0.1, [fd00::1], looked up in ")
    named = [["broker", family, text, port] for port in (9092, 9093) for family, text in answer("broker", port)]
    assert looked.addresses == {"up": [*named, ["10.0.0.9", AF_INET, "10.0.0.9", 1], ["", 1, "/x"]]}
    monkeypatch.setattr(names, "_SLOW_S", 0.0)
    assert levels(Lookups(around(tmp_path, config=config_of("broker:1")), answer).look()) == ["warning"]
    assert literal_addresses(around(tmp_path, config=config)) == {}, "one that has names waits for them"
    literal = around(tmp_path, config=config_of("10.0.0.9:1"))
    assert literal_addresses(literal) == {"up": [["10.0.0.9", AF_INET, "10.0.0.9", 1]]}
    assert (list(Lookups(literal, answer).look()), Lookups(literal, answer).addresses) == ([], {})
    none = Lookups(around(tmp_path))
    assert (list(none.look()), none.addresses) == ([], {})


def test_a_name_that_cannot_be_looked_up_is_a_fault_and_others_are_found(tmp_path: Path) -> None:
    config = config_of(upstream={"endpoints": ("nowhere:1", "broker:1")})
    found = list(Lookups(around(tmp_path, config=config), answer).look())
    assert (one(found, "nowhere").level, one(found, "broker").level) == ("fault", "ok")
    assert one(found, "nowhere").found == "cannot be looked up: Name or service not known"


def test_a_name_server_that_hangs_costs_the_time_of_one_probe(tmp_path: Path) -> None:
    never = threading.Event()

    def hang(host: str, port: int) -> Iterable[tuple[int, str]]:
        never.wait(30)
        return []

    begun = time.monotonic()
    config = config_of(upstream={"endpoints": ("a:1", "b:1", "c:1")})
    found = list(Lookups(around(tmp_path, config=config, timeout_s=0.05), hang).look())
    assert time.monotonic() - begun < 2
    never.set()
    assert [(item.level, item.found) for item in found] == [("fault", "cannot be looked up: no answer within 0.05 s")] * 3
