"""What is documented of rows is what the code says."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

from framegate.control.logs.catalog import EVENTS
from framegate.proxy.server.rows import RESTORED
from tests.fakes.cases import each_of
from tests.fakes.deploying import module
from tests.fakes.log import row_fault
from tests.fakes.rows import access_row, closed_row, opened_row

json_schema, schema_text, table_text = (getattr(module("log_pages"), name) for name in ("json_schema", "schema_text", "table_text"))
SCHEMA = jsonschema.Draft202012Validator(json_schema())
HEAD = {"time": "2026-11-23T11:04:09.123Z", "level": "info"}


def printed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in RESTORED}


ROWS: dict[str, dict[str, Any]] = {
    "opened": {**HEAD, "event": "opened", **printed(opened_row()), "id": "0-1-2"},
    "access": {**HEAD, "event": "access", **printed(access_row()), "id": "0-1-2"},
    "closed": {**HEAD, "event": "closed", **printed(closed_row()), "id": "0-1-2"},
    "stopping": {**HEAD, "event": "stopping", "reason": "signal"},
    "stopped": {**HEAD, "event": "stopped"},
    "endpoint_down": {**HEAD, "level": "warning", "event": "endpoint_down", "slot": 0, "upstream": "u", "endpoint": "a:1", "failures": 1,
                      "reason": "refused", "detail": "no", "backoff_ms": 1000},
}  # fmt: skip


def test_the_schema_is_one_and_the_file_is_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json.loads(schema_text()) == json_schema()


def test_the_table_names_every_event_and_every_field() -> None:
    lines = {line.split("`")[1]: line for line in table_text().partition("\n## ")[0].splitlines() if line.startswith("| `")}
    assert list(lines) == list(EVENTS)
    for name, event in EVENTS.items():
        assert all(f"`{field}`" in lines[name] for field in event.fields)


@each_of("row", ROWS.values())
@each_of("more", [{}, {"rows_dropped": 3}, {"trace_id": "0" * 32, "span_id": "0" * 16}])
def test_a_row_is_valid_also_with_what_any_may_have(row: dict[str, Any], more: dict[str, Any]) -> None:
    SCHEMA.validate({**row, **more})
    assert row_fault({**row, **more}) == ""


@each_of(
    ("name", "change", "told"),
    [
        ("closed", {"event": "clsoed"}, "clsoed"),
        ("closed", {"level": "debug"}, "debug"),
        ("closed", {"colour": "red"}, "colour"),
        ("closed", {"lost": {"bytes": 1, "request": 1}}, "response"),
        ("closed", {"attempts": "1"}, "'1'"),
        ("closed", {"attempts": None}, ""),
        ("stopping", {"reason": None}, "None"),
        ("stopped", {"reason": "forced"}, ""),
        ("stopped", {"rows_dropped": "3"}, "'3'"),
        ("endpoint_down", {"server_name": "broker"}, ""),
        ("endpoint_down", {"server_name": None}, "None"),
    ],
)
def test_a_row_that_is_not_as_the_catalog_says_is_not_valid(name: str, change: dict[str, Any], told: str) -> None:
    row = {**ROWS[name], **change}
    fault = "; ".join(error.message for error in SCHEMA.iter_errors(row))
    assert bool(fault) is bool(told)
    assert told in fault
    assert bool(row_fault(row)) is bool(told), "what the rows of real runs are judged by"
