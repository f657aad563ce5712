"""What a side speaks, and what that asks of the rest."""

import pathlib
from typing import Any

import pytest

from tests.fakes.configuration import faults, put, warnings


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("listeners.1.framing", "int64", "listeners[1].framing", "must be 'int32'"),
        ("listeners.1.framing", "header", "listeners[1].framing", "needs the key header"),
        ("upstreams.0.framing", "header", "upstreams[0].framing", "needs the key header"),
        ("listeners.1.framing", "lines", "listeners[1].forwarding.responses", "must be whole"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(data, path, value))
    assert [item for item, reason in found if part in reason] == [key], found


@pytest.mark.parametrize(
    ("header", "key", "part"),
    [
        ({}, "header.size", "is required"),
        ({"size": 65}, "header.size", "must be from 1B to 64B"),
        ({"size": 4, "offset": 1}, "header.width", "4 bytes from 1 on, and the header has 4"),
        ({"size": 4, "width": 5}, "header.width", "5 bytes from 0 on"),
        ({"size": 6, "fill": "0102f"}, "header.fill", "is not hexadecimal"),
        ({"size": 6, "fill": "01"}, "header.fill", "has 1 bytes, and the header has 2 besides"),
        ({"size": 6, "counts": "all"}, "header.counts", "must be 'body', 'rest' or 'frame'"),
        ({"size": 6, "wide": 3}, "header.wide", "did you mean width?"),
    ],
)
def test_a_header_must_hold_its_integer(data: dict[str, Any], header: dict[str, Any], key: str, part: str) -> None:
    data["listeners"][1] |= {"framing": "header", "header": header}
    found = faults(data)
    assert [item for item, reason in found if part in reason] == [f"listeners[1].{key}"], found


@pytest.mark.parametrize("header", [{"size": 1, "width": 1}, {"size": 64, "offset": 60}, {"size": 6, "fill": "0102"}])
def test_a_header_that_can_be_is_taken(data: dict[str, Any], header: dict[str, Any]) -> None:
    data["listeners"][1] |= {"framing": "header", "header": header}
    assert faults(data) == []


def test_kafka_has_one_framing_on_both_sides(data: dict[str, Any]) -> None:
    data["listeners"][0]["protocol"] = "kafka"
    assert faults(put(data, "listeners.0.framing", "varint")) == [("listeners[0].framing", "must be int32: protocol kafka has no other")]
    ((key, reason),) = faults(put(data, "upstreams.0.framing", "varint"))
    assert (key, reason) == ("listeners[0].upstream", "speaks varint, and protocol kafka has no framing but int32")


def test_lines_pass_whole_both_ways(data: dict[str, Any]) -> None:
    data["listeners"][1] |= {"framing": "lines_crlf", "forwarding": {"requests": "cut_through", "responses": "whole"}}
    data["upstreams"][0]["max_receive_size"] = "1MiB"
    assert [key for key, _ in faults(data)] == ["listeners[1].forwarding.requests"]
    data["listeners"][1]["forwarding"]["requests"] = "whole"
    assert faults(data) == []


def test_a_header_without_effect_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    found = warnings(put(data, "listeners.1.header", {"size": 4}), tmp_path)
    assert ("listeners[1].header", "has no effect: framing is not header") in found
