"""The pool holds what passes whole, and what listeners are guaranteed."""

import pathlib
from typing import Any

import pytest

from tests.fakes.configuration import faults, put, warnings


@pytest.mark.parametrize(
    ("path", "value", "key", "part"),
    [
        ("memory_pool.size", "1MiB", "memory_pool.size", "at least 2MiB are needed"),
        ("memory_pool.shares", {"kafkaa": 5}, "memory_pool.shares.kafkaa", "is not the name of a listener; there are: kafka, plain"),
        ("memory_pool.shares", {"kafka": 60, "plain": 50}, "memory_pool.shares", "guarantees 110 percent, and there are 100"),
        ("memory_pool.shares", {"kafka": 100}, "memory_pool.shares", "leaves nothing to plain"),
        ("memory_pool.shares", {"kafka": 0}, "memory_pool.shares.kafka", "must be from 1 to 100"),
        ("memory_pool.shares", {"kafka": "half"}, "memory_pool.shares.kafka", "must be a whole number"),
        ("memory_pool.shares", {"kafka": "101"}, "memory_pool.shares.kafka", "must be from 1 to 100"),
        ("memory_pool.shares", [5], "memory_pool.shares", "must be a mapping of names to values"),
        ("listeners.1.forwarding", {"responses": "whole"}, "listeners[1].forwarding.responses", "set upstreams[0].max_receive_size to at most 4MiB"),
        ("listeners.1.forwarding", {"requests": "splice"}, "listeners[1].forwarding.requests", "must be 'whole' or 'cut_through'"),
    ],
)
def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any], path: str, value: object, key: str, part: str) -> None:
    found = faults(put(data, path, value))
    assert [item for item, reason in found if part in reason] == [key], found


@pytest.mark.parametrize("shares", [{}, {"kafka": 60}, {"kafka": 60, "plain": 40}, {"kafka": 99}, {"kafka": None}])
def test_shares_that_can_be_kept_are_taken(data: dict[str, Any], shares: dict[str, int | None]) -> None:
    assert faults(put(data, "memory_pool.shares", shares)) == []


def test_answers_that_pass_whole_fit_into_a_processors_part(data: dict[str, Any]) -> None:
    data["listeners"][1]["forwarding"] = {"responses": "whole"}
    assert faults(put(data, "upstreams.0.max_receive_size", "4MiB")) == []
    ((key, reason),) = faults(put(data, "upstreams.0.max_receive_size", "4097KiB"))
    assert key == "listeners[1].forwarding.responses"
    assert reason == (
        "needs answers that a processor can hold: upstreams[0].max_receive_size is 4097KiB, and each of 2 processors has 4MiB of memory_pool.size; "
        "set upstreams[0].max_receive_size to at most 4MiB, or cut_through here"
    )
    assert faults(put(put(data, "upstreams.0.max_receive_size", "8MiB"), "processors", 1)) == []


def test_as_few_processors_are_started_as_hold_answers_that_pass_whole(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.configuration.pool_rules.cpu_limit", lambda: 8)
    data["listeners"][1]["forwarding"] = {"responses": "whole"}
    assert faults(put(put(data, "upstreams.0.max_receive_size", "3MiB"), "processors", 0)) == []


def test_requests_that_are_cut_through_may_be_larger_than_the_pool(data: dict[str, Any]) -> None:
    data["listeners"][0]["max_receive_size"] = "1GiB"
    assert [key for key, _ in faults(data)] == ["memory_pool.size"]
    data["listeners"][0]["forwarding"] = {"requests": "cut_through"}
    assert faults(data) == []


def test_a_wrong_way_of_forwarding_hides_no_other_fault(data: dict[str, Any]) -> None:
    data["listeners"][0]["forwarding"] = {"requests": "splice", "responses": 5}
    found = sorted(key for key, _ in faults(put(data, "memory_pool.size", "1MiB")))
    assert found == ["listeners[0].forwarding.requests", "listeners[0].forwarding.responses", "memory_pool.size"]


def test_zero_processors_never_make_the_default_pool_too_small(data: dict[str, Any]) -> None:
    assert faults(put(data, "processors", 0)) == []


def test_a_share_of_a_pool_without_bounds_has_no_effect(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    data["memory_pool"].update(shares={"kafka": 50}, kind="leak_finding")
    assert warnings(data, tmp_path) == []
    data["memory_pool"]["kind"] = "unbounded"
    assert warnings(data, tmp_path) == [("memory_pool.shares", "has no effect: with kind unbounded nobody waits for memory")]
    ((key, reason),) = faults(put(data, "memory_pool.kind", "endless"))
    assert (key, "'bounded', 'unbounded' or 'leak_finding'" in reason) == ("memory_pool.kind", True), reason


def test_a_share_of_the_only_listener_has_no_effect(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    data["memory_pool"]["shares"] = {"kafka": 50}
    assert warnings(data, tmp_path) == []
    del data["listeners"][1]
    assert warnings(data, tmp_path) == [("memory_pool.shares", "has no effect: there is one listener, and the whole pool is its own")]
