import json
from typing import Any

import pytest

from framegate.proxy.pipeline.position import FleetPosition, NodePosition, Position, PositionError
from tests.fakes.cases import each_of

WHOLE = Position({"b": 2, "a": 1}, 7, ("c",), {"z": (1, -1, 0, 5), "y": (0, 3, 4, 5)}, "line 3: torn")


@each_of("position", [Position({}), Position({"a": 1}, 0), WHOLE])
def test_what_is_encoded_is_decoded(position: Position) -> None:
    assert Position.decode(json.loads(json.dumps(position.encode()))) == position


def test_keys_are_sorted_and_what_is_empty_is_left_out() -> None:
    assert json.dumps(WHOLE.encode()) == (
        '{"born": ["c"], "damage": "line 3: torn", "ledger": 7, "lost": {"y": [0, 3, 4, 5], "z": [1, -1, 0, 5]}, '
        '"streams": {"a": 1, "b": 2}, "version": 2}'
    )
    assert Position({"a": 1}, 0).encode() == {"ledger": 0, "streams": {"a": 1}, "version": 2}


def test_a_tap_without_a_ledger_has_offsets_of_version_1() -> None:
    old = {"streams": {"a": 1}, "version": 1}
    assert Position.decode(old) == Position({"a": 1})
    assert Position({"a": 1}).encode() == old


@each_of("offset", [{"streams": {}, "version": 4}, {"streams": {}}, {"streams": [], "version": 1}, {"version": 2}])
def test_what_another_version_wrote_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(PositionError, match="this source knows up to 2"):
        Position.decode(offset)


FLEET = FleetPosition({"b": NodePosition(), "a": NodePosition({"y": 2, "x": 1}, (3, 77), (5, 4), {"_ledger": (0, -1, 0, 9)}, "it is gone")})


def test_the_position_in_a_store_is_by_node_with_sorted_keys() -> None:
    assert FleetPosition.decode(json.loads(json.dumps(FLEET.encode()))) == FLEET
    assert json.dumps(FLEET.encode()) == (
        '{"nodes": {"a": {"damage": "it is gone", "heard": [5, 4], "known": [3, 77], "lost": {"_ledger": [0, -1, 0, 9]}, '
        '"streams": {"x": 1, "y": 2}}, "b": {"heard": [0, 0], "known": [0, 0]}}, "version": 3}'
    )


def test_a_checkpoint_of_a_directory_is_not_one_of_a_store() -> None:
    with pytest.raises(PositionError, match="of a log in an object store, not of a directory"):
        Position.decode(FLEET.encode())
    with pytest.raises(PositionError, match="is of a directory, not of a log in an object store"):
        FleetPosition.decode(WHOLE.encode())
    with pytest.raises(PositionError, match="offsets of version 4"):
        FleetPosition.decode({"nodes": {}, "version": 4})
