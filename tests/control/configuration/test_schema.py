from typing import Any

import pytest

from control.configuration.document import Document, document_of
from control.configuration.schema import build, convert
from proxy.config import model
from proxy.config.model import ProxyConfig

SMALL: dict[str, Any] = {
    "node": "n",
    "listeners": [{"name": "a", "address": "127.0.0.1:0", "upstream": "u"}],
    "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"]}],
}


def faults_of(data: dict[str, Any]) -> list[tuple[str, str]]:
    document = document_of(data)
    build(document, convert(document))
    return [(fault.key, fault.reason) for fault in document.faults]


def listener(**keys: object) -> dict[str, Any]:
    return {**SMALL, "listeners": [{**SMALL["listeners"][0], **keys}]}


def built(data: dict[str, Any]) -> tuple[ProxyConfig | None, Document]:
    document = document_of(data)
    return build(document, convert(document)), document


def test_a_small_document_becomes_the_model_with_its_defaults() -> None:
    config, document = built(SMALL)
    assert document.faults == []
    assert config is not None
    assert config.listeners[0].max_receive_size == 100 * model.MIB
    assert isinstance(config.upstreams[0].endpoints, tuple)


def test_times_and_sizes_are_read_with_their_units() -> None:
    config, _ = built(listener(max_receive_size="1MiB", min_rate=0, timeouts={"idle": "10m", "stall": "1s"}))
    assert config is not None
    assert config.listeners[0].max_receive_size == 2**20
    assert config.listeners[0].timeouts.idle_ms == 600_000
    assert config.listeners[0].timeouts.stall_ms == 1000


def test_a_word_is_one_of_its_list() -> None:
    config, _ = built(listener(half_close_before_data="wait"))
    assert config is not None
    assert config.listeners[0].half_close_before_data == "wait"
    config, document = built(listener(half_close_before_data="stay"))
    assert config is None
    assert [(fault.key, fault.reason) for fault in document.faults] == [("listeners[0].half_close_before_data", "must be 'close' or 'wait'")]


def test_a_mapping_of_names_has_a_number_for_each() -> None:
    config, document = built({**SMALL, "memory_pool": {"shares": {"a": 30, "b": "40", "c": None}}})
    assert document.faults == []
    assert config is not None
    assert config.memory_pool.shares == {"a": 30, "b": 40}
    for value, key, part in (
        (True, "memory_pool.shares.a", "must be a number"),
        (1.5, "memory_pool.shares.a", "must be a whole number"),
        ([5], "memory_pool.shares.a", "must be a whole number"),
        (101, "memory_pool.shares.a", "must be from 1 to 100"),
    ):
        ((found, reason),) = faults_of({**SMALL, "memory_pool": {"shares": {"a": value}}})
        assert (found, part in reason) == (key, True), reason
    assert faults_of({**SMALL, "memory_pool": {"shares": 5}}) == [("memory_pool.shares", "must be a mapping of names to values")]


def test_an_empty_section_has_its_defaults_and_an_empty_optional_one_is_absent() -> None:
    config, document = built({**listener(timeouts=None, tls=None), "tap": None, "memory_pool": None})
    assert document.faults == []
    assert config is not None
    assert config.tap is None
    assert config.memory_pool.size == 256 * model.MIB


def test_a_number_where_a_word_is_meant_is_taken_as_written() -> None:
    document = document_of({**SMALL, "node": 7})
    config = build(document, convert(document))
    assert config is not None
    assert config.node == "7"


@pytest.mark.parametrize(
    ("keys", "key", "part"),
    [
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
    ],
)
def test_a_wrong_value_is_one_fault_at_its_key(keys: dict[str, Any], key: str, part: str) -> None:
    found = [fault for fault in faults_of(listener(**keys)) if fault[0] == f"listeners[0].{key}"]
    assert len(found) == 1
    assert part in found[0][1]


def test_a_list_that_is_none_is_a_fault() -> None:
    assert ("upstreams[0].endpoints", "must be a list") in faults_of({**SMALL, "upstreams": [{"name": "u", "endpoints": "127.0.0.1:1"}]})


def test_missing_keys_are_all_named() -> None:
    assert {key for key, reason in faults_of({}) if reason == "is required"} == {"node", "listeners"}


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (listener(pasword="canary-7f3a9c"), ""),
        (listener(password=12345678), ""),
        (listener(tls={"certificate": "c", "key": "k", "key_password": "canary-7f3a9c"}), ""),
        (listener(sasl="canary-7f3a9c"), "no mapping"),
        (listener(sasl=["canary-7f3a9c"]), "a list"),
        (listener(tls={"certificate": 5, "key": "-----BEGIN PRIVATE KEY-----\ncanary-7f3a9c\0"}), "PEM text"),
    ],
)
def test_what_may_be_a_secret_is_not_shown(data: dict[str, Any], shown: str) -> None:
    document = document_of(data)
    build(document, convert(document))
    assert shown in [fault.value for fault in document.faults]
    assert "canary" not in repr(document.faults)
    assert "12345678" not in repr(document.faults)
