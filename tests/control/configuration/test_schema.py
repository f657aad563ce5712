import pathlib
from typing import Any

from framegate.control.configuration.document import document_of
from framegate.control.configuration.schema import build
from framegate.proxy.config import model
from framegate.proxy.config.model import ProxyConfig

SMALL: dict[str, Any] = {
    "node": "n",
    "listeners": [{"name": "a", "address": "127.0.0.1:0", "upstream": "u"}],
    "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"]}],
}


def faults_of(data: dict[str, Any]) -> list[tuple[str, str]]:
    document = document_of(data)
    build(document)
    return [(fault.key, fault.reason) for fault in document.faults]


def listener(**keys: object) -> dict[str, Any]:
    return {**SMALL, "listeners": [{**SMALL["listeners"][0], **keys}]}


def built(data: dict[str, Any]) -> ProxyConfig:
    document = document_of(data, pathlib.Path("/etc/fg"))
    config = build(document)
    assert document.faults == []
    return config


def test_a_small_document_becomes_the_model_with_its_defaults() -> None:
    config = built(SMALL)
    assert config.listeners[0].max_receive_size == 100 * model.MIB
    assert config.upstreams[0].endpoints == ("127.0.0.1:1",)
    assert built({**listener(timeouts=None, tls=None), "tap": None, "memory_pool": None}) == config


def test_values_are_read_with_their_units_and_as_they_are_written() -> None:
    keys = {"name": 7, "max_receive_size": "1MiB", "backlog": "5", "half_close_before_data": "wait", "timeouts": {"idle": "10m", "stall": "1s"}}
    found = built(listener(**keys)).listeners[0]
    assert (found.name, found.max_receive_size, found.backlog, found.half_close_before_data) == ("7", 2**20, 5, "wait")
    assert (found.timeouts.idle_ms, found.timeouts.stall_ms) == (600_000, 1000)
    assert built({**SMALL, "processors": 3.0}).processors == 3


def test_a_mapping_of_names_has_a_number_for_each() -> None:
    assert built({**SMALL, "memory_pool": {"shares": {"a": 30, "b": "40", "c": None}}}).memory_pool.shares == {"a": 30, "b": 40}
    for value, key, part in (
        (True, "memory_pool.shares.a", "must be a number"),
        (1.5, "memory_pool.shares.a", "must be a whole number"),
        ([5], "memory_pool.shares.a", "must be a whole number"),
        (101, "memory_pool.shares.a", "must be from 1 to 100"),
        (0, "memory_pool.shares.a", "must be from 1 to 100"),
        ("half", "memory_pool.shares.a", "must be a whole number"),
    ):
        ((found, reason),) = faults_of({**SMALL, "memory_pool": {"shares": {"a": value}}})
        assert (found, part in reason) == (key, True), reason
    assert faults_of({**SMALL, "memory_pool": {"shares": 5}}) == [("memory_pool.shares", "must be a mapping of names to values")]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"half_close_before_data": "stay"}, "half_close_before_data", "must be 'close' or 'wait'"),
    ({"backlog": float("inf")}, "backlog", "must be a whole number"),
    ({"allowed_principals": ["a", None]}, "allowed_principals[1]", "must be text"),
    ({"protocol": "kafkka"}, "protocol", "must be 'framed' or 'kafka'"),
    ({"max_receive_size": "1 MegaByte"}, "max_receive_size", "is not a size"),
    ({"max_receive_size": 0}, "max_receive_size", "must be from 1B to 2147483647B"),
    ({"max_receive_size": True}, "max_receive_size", "must be a number"),
    ({"max_receive_size": [1]}, "max_receive_size", "is not a size"),
    ({"backlog": "many"}, "backlog", "must be a whole number"),
    ({"backlog": 1.5}, "backlog", "must be a whole number"),
    ({"backlog": 0}, "backlog", "must be from 1 to 65535"),
    ({"backlog": "70000"}, "backlog", "must be from 1 to 65535"),
    ({"forwarding": "whole"}, "forwarding", "must be a mapping"),
    ({"forwarding": {"request": "whole"}}, "forwarding.request", "did you mean requests?"),
    ({"timeouts": {"idle": 10}}, "timeouts.idle", "is not a time"),
    ({"timeouts": {"stall": "1ms"}}, "timeouts.stall", "must be from 1s to 1h"),
    ({"timeouts": [1]}, "timeouts", "must be a mapping"),
    ({"timeoutz": {}}, "timeoutz", "did you mean timeouts?"),
    ({"name": ["x"]}, "name", "must be text"),
    ({"address": "unix:a\0b"}, "address", "holds a character"),
    ({"tls": {"certificate": "\ud800", "key": "k"}}, "tls.certificate", "holds a character"),
    ({"tls": {}}, "tls.certificate", "is required"),
]


def test_a_wrong_value_is_one_fault_at_its_key() -> None:
    wrong = []
    for keys, key, part in WRONG:
        found = [(name, part in reason) for name, reason in faults_of(listener(**keys)) if name == f"listeners[0].{key}"]
        wrong += [(keys, found)] * (found != [(f"listeners[0].{key}", True)])
    assert wrong == []
    assert ("upstreams[0].endpoints", "must be a list") in faults_of({**SMALL, "upstreams": [{"name": "u", "endpoints": "127.0.0.1:1"}]})


def test_missing_keys_are_all_named() -> None:
    assert {key for key, reason in faults_of({"upstreams": [{}]}) if reason == "is required"} == {"listeners", "upstreams[0].name"}


def test_what_may_be_a_secret_is_not_shown() -> None:
    for data, shown in (
        (listener(pasword="canary-7f3a9c"), ""),
        (listener(password=12345678), ""),
        (listener(tls={"certificate": "c", "key": "k", "key_password": "canary-7f3a9c"}), ""),
        (listener(sasl="canary-7f3a9c"), "no mapping"),
        (listener(sasl=["canary-7f3a9c"]), "a list"),
        (listener(tls={"certificate": 5, "key": "-----BEGIN PRIVATE KEY-----\ncanary-7f3a9c\0"}), "PEM text"),
    ):
        document = document_of(data)
        build(document)
        assert shown in [fault.value for fault in document.faults], shown
        assert "canary" not in repr(document.faults)
        assert "12345678" not in repr(document.faults)


def test_every_relative_path_starts_at_the_folder() -> None:
    keys = {"admin": {"address": "unix:admin.sock"}, "tap": {"directory": "var/tap"}}
    upstreams = [{"name": "u", "endpoints": ["unix:u.sock", "host:1"], "tls": {"ca": "ca.crt"}}]
    config = built({**listener(address="unix:l.sock", tls={"certificate": "a.crt", "key": "/k", "client_ca": None}), "upstreams": upstreams, **keys})
    (side,), (other,) = config.listeners, config.upstreams
    assert side.tls is not None
    assert other.tls is not None
    assert config.tap is not None
    assert (config.admin.address, config.tap.directory, side.address) == ("unix:/etc/fg/admin.sock", "/etc/fg/var/tap", "unix:/etc/fg/l.sock")
    assert (side.tls.certificate, side.tls.key, side.tls.client_ca) == ("/etc/fg/a.crt", "/k", None)
    assert (other.endpoints, other.tls.ca) == (("unix:/etc/fg/u.sock", "host:1"), "/etc/fg/ca.crt")


def test_a_default_that_is_a_path_starts_there_too_and_what_is_given_takes_its_place() -> None:
    for keys, path in (({}, ("/etc/fg",)), ({"queue": 5}, ("/etc/fg",)), ({"path": ["a", "/b"]}, ("/etc/fg/a", "/b")), ({"path": []}, ())):
        assert built({**SMALL, "handlers": keys}).handlers.path == path
    assert built(SMALL).handlers.path == ("/etc/fg",)
