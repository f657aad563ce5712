"""The catalog has every event that the code writes, with what the code writes of it, and no others."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from framegate.control.fleet.handler_process import KIND as HANDLER
from framegate.control.fleet.processor import KIND as PROCESSOR
from framegate.control.logs.catalog import COMMON, EVENTS
from framegate.proxy.config.log import LEVELS
from framegate.proxy.server.protocol import EVENTS as OF_PROCESSORS
from framegate.proxy.server.schema import schema_of
from tests.fakes.cases import each_of

ROOT = Path(__file__).parents[3]
TOLD_BY = {"write", "publish", "write_encoded", "write_lines", "publish_lines", "log", "_complain", "_report", "offer"}
WORDS = (PROCESSOR.word, HANDLER.word)
OTHERS = {"closed", "opened", "access", "row_failed"} | set(OF_PROCESSORS)
"""What comes over the link, by the name of its notice or of its row; and what stands in the place of a row that could not be written."""


class Told(NamedTuple):
    """An event that the code writes: where, and the fields and level that it names there."""

    where: str
    event: str
    fields: frozenset[str]
    level: str | None


def names_in(node: ast.expr, *, is_child: bool) -> Iterator[str]:
    """The events that an expression may come to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from (f"{word}_{node.value}" for word in WORDS) if is_child else (node.value,)
    elif isinstance(node, ast.IfExp):
        yield from names_in(node.body, is_child=is_child)
        yield from names_in(node.orelse, is_child=is_child)
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[-1], ast.Constant):  # f"{kind.word}_start_failed"
        yield from (f"{word}{node.values[-1].value}" for word in WORDS)


def dictionary(node: ast.Dict) -> tuple[frozenset[str], list[str]]:
    """The fields of a row that is written out, and its possible events."""
    keys = {key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)}
    events = list(names_in(keys["event"], is_child=False)) if "event" in keys else []
    return frozenset(str(key) for key in keys) - {"event", "level"}, events


def told(path: Path) -> Iterator[Told]:
    tree = ast.parse((ROOT / path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and "demo" not in path.parts:
            fields, events = dictionary(node)
            yield from (Told(f"{path}:{node.lineno}", event, fields, None) for event in events)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in TOLD_BY or not node.args:
            continue
        if node.func.attr == "log" and isinstance(node.func.value, ast.Name) and node.func.value.id == "math":
            continue
        level = next((item.value.value for item in node.keywords if item.arg == "level" and isinstance(item.value, ast.Constant)), None)
        fields = frozenset(item.arg for item in node.keywords if item.arg is not None) - {"level", "line", "size", "reserved"}
        for event in names_in(node.args[0], is_child=node.func.attr == "log" and "fleet" in path.parts):
            yield Told(f"{path}:{node.lineno}", event, fields if node.func.attr in ("write", "log", "_report") else frozenset(), level)


def source(room: str) -> Iterator[Told]:
    for path in sorted((ROOT / room).rglob("*.py")):
        shown = path.relative_to(ROOT)
        if "demo" not in shown.parts and "cli" not in shown.parts and "gen" not in shown.parts:
            yield from told(shown)


# What is no event: reasons of what the tap's keeper complains of (``_complain(what, error)``), and files that are written to.
ALL = [each for each in source("control") if not (each.where.startswith("control/tap/keeper.py") and each.event in {
    "keeper", "born", "carry", "deleted", "sweep", "seal", "orphans", "missing", "segments", "settlement"})]  # fmt: skip


def test_every_event_of_the_code_is_in_the_catalog() -> None:
    assert sorted(f"{each.where}: {each.event}" for each in ALL if each.event not in EVENTS) == []


def test_the_catalog_has_no_event_that_the_code_does_not_write() -> None:
    assert EVENTS.keys() - {each.event for each in ALL} - OTHERS == set()


def test_fields_in_the_code_are_in_the_catalog() -> None:
    unknown = [(each, each.fields - EVENTS[each.event].fields.keys()) for each in ALL if each.event in EVENTS]
    assert [f"{each.where}: {each.event} {sorted(fields)}" for each, fields in unknown if fields] == []


def test_levels_in_the_code_are_in_the_catalog() -> None:
    assert [
        f"{each.where}: {each.event} {each.level}" for each in ALL if each.level is not None and each.level not in EVENTS[each.event].levels
    ] == []


@each_of("name", EVENTS)
def test_an_event_has_fields_that_can_be_judged_and_none_that_every_row_has(name: str) -> None:
    event = EVENTS[name]
    assert event.levels
    assert set(event.levels) <= set(LEVELS)
    assert not event.fields.keys() & COMMON.keys()
    for hint in event.fields.values():
        bare = hint.__args__[0] if getattr(hint, "__name__", "") == "NotRequired" else hint
        assert schema_of(bare).fault({"no": object()}) is not None
