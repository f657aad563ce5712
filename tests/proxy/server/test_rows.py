"""Rows and messages have one declaration each, and are made by calling it: nobody writes their keys a second time."""

import ast
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from framegate.proxy.server import messages, rows
from framegate.proxy.server.rows import DemandRow, PartRow, RateCounter, RateLevel, Store, listener_owner, pack_stores, read_stores, upstream_owner
from framegate.proxy.server.schema import schema_of
from tests.fakes.cases import each_of

ROOT = Path(__file__).parents[3]
ROOMS = ("proxy", "control", "tests/fakes")
ROWS = [each for each in vars(rows).values() if typing.is_typeddict(each)]
DECLARED = {each.__name__: frozenset(each.__annotations__) for each in ROWS if len(each.__annotations__) > 3}
TYPES = frozenset(
    word
    for each in vars(messages).values()
    if typing.is_typeddict(each) and "type" in each.__annotations__
    for word in typing.get_args(typing.get_type_hints(each)["type"])
)
OWN = frozenset(key for each in ROWS for key in each.__required_keys__ if "_" in key)  # keys that mean nothing but themselves, wherever they are put


def copies(source: str) -> Iterator[str]:
    """Where a source writes a row, or a message, without calling its class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            words = {
                value.value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "type" and isinstance(value, ast.Constant)
            }
            for word in words & TYPES:
                yield f"line {node.lineno}: a message {word}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            keys = {item.arg for item in node.keywords if item.arg is not None}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant):
            if node.slice.value in OWN:
                yield f"line {node.lineno}: {node.slice.value}"
            continue
        else:
            continue
        for name, declared in DECLARED.items():
            if 2 * len(keys & declared) > len(declared):
                yield f"line {node.lineno}: a {name}"


@each_of("room", ROOMS)
def test_nobody_writes_a_row_or_a_message_but_by_calling_its_class(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {copy}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if "control/v1/" not in str(path)
        for copy in copies(path.read_text())
    ]
    assert found == []


@each_of(
    ("source", "found"),
    [
        (f"row = {dict.fromkeys([*rows.ClosedRow.__annotations__][:20], 1)}", "a ClosedRow"),
        ('row = dict(rule="r", cause="c", percent=1.0, limit=2.0)', "a TapRuleOffRow"),
        ('row["closed_ns"] = 5', "closed_ns"),
        ('link.post({"type": "commit", "id": number})', "a message commit"),
    ],
)
def test_a_copy_is_found_but_not_a_reader_or_a_call_of_the_class(source: str, found: str) -> None:
    assert f"line 1: {found}" in list(copies(source))
    assert list(copies('x = ClosedRow(id=row["id"], listener="a", cause="b", closed_ns=row["closed_ns"])\nrow["peer"] = "p"\n')) == []


def test_a_part_and_a_demand_are_of_one_level_and_counter() -> None:
    for level in typing.get_args(RateLevel):
        for counter in typing.get_args(RateCounter):
            assert schema_of(PartRow).fault({"level": level, "name": "", "counter": counter, "part": -1}) == ""
            assert schema_of(DemandRow).fault({"level": level, "name": "a", "counter": counter, "used": 1, "waiting": 1000, "wanting": 1000}) == ""
    for row in ({"level": "nobody"}, {"counter": "bytes"}, {"part": "1"}):
        assert schema_of(PartRow).fault({"level": "node", "name": "", "counter": "request_bytes", "part": 1, **row}) != ""


def test_stores_arrive_as_they_were_and_what_several_have_is_sent_once() -> None:
    stores = {
        listener_owner("a"): Store(3, "f0", {"c": "certificate", "ca": "authority"}),
        upstream_owner("u"): Store(1, "", {"other/ca": "authority"}),
    }
    row = pack_stores(stores)
    assert row["contents"] == ["certificate", "authority"]
    assert read_stores(row) == stores
    assert list(stores) == ["listener/a", "upstream/u"]
    row["contents"].clear()
    with pytest.raises(ValueError, match="files of listener/a was not sent along"):
        read_stores(row)
    assert "secret" not in repr(Store(1, "", {"k": "secret"}))
