"""framegate.control.fleet.desired_state: what a processor is told at its start, and all of it once more as one change."""

import dataclasses

from framegate.control.fleet.desired_state import DesiredState, default_part
from framegate.proxy.config.model import MIB, TapConfig, TapRule, to_wire
from framegate.proxy.server.protocol import WIRE_VERSION
from framegate.proxy.server.rows import StandingRow, Store
from tests.fakes.fleet import fleet_config

CELLS = [["framegate.listener", "a"], ["framegate.upstream", "u"], ["endpoint", "u", "127.0.0.1", "1", ""]]
ENDPOINTS = {"u": [["127.0.0.1", 2, "127.0.0.1", 1]]}
STORES = {"contents": ["secret"], "stores": {"listener/a": {"number": 4, "shown": "f0", "files": {"tls.key": 0}}}}


def state(tap: TapConfig | None = None) -> DesiredState:
    return DesiredState(fleet_config(2, tap), ENDPOINTS, {0: 7 * MIB, 1: 5 * MIB}, stores={"listener/a": Store(4, "f0", {"tls.key": "secret"})})


def test_a_processor_starts_with_all_there_is_and_the_share_of_its_slot() -> None:
    desired = state()
    assert desired.start_message(1, 5, "boot") == {
        "type": "start",
        "wire": WIRE_VERSION,
        "config": to_wire(desired.config),
        "slot": 1,
        "generation": 5,
        "boot_id": "boot",
        "share": 5 * MIB,
        "part": 500_000,
        "endpoints": ENDPOINTS,
        "cells": CELLS,
        "stores": STORES,
        "rows_at_open": False,
        "request_sample": 0.0,
    }
    desired.rows_at_open, desired.request_sample = True, 0.5
    desired.standing = [StandingRow(number=1, verb="close", reason="", request_rate=0, response_rate=0, conditions=[])]
    message = desired.start_message(1, 5, "boot")
    assert (message["rows_at_open"], message["request_sample"], message["standing"]) == (True, 0.5, desired.standing)
    assert desired.whole(1)["standing"] == desired.standing


def test_all_that_can_change_is_one_change() -> None:
    desired = state(TapConfig(directory="tap", rules=(TapRule(name="all"),)))
    whole = {
        "config": to_wire(desired.config),
        "cells": CELLS,
        "share": 7 * MIB,
        "endpoints": ENDPOINTS,
        "stores": STORES,
        "standing": [],
        "rows_at_open": False,
        "request_sample": 0.0,
    }
    assert desired.whole(0) == whole


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(dataclasses.replace(state()))


def test_each_has_an_equal_part_of_each_rate() -> None:
    assert [default_part(count) for count in (0, 1, 2, 5)] == [1_000_000, 1_000_000, 500_000, 200_000]
