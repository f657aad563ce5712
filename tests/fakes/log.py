"""Rows of the log, judged as ``deploy/log.schema.json`` says."""

import functools
from typing import Any

import jsonschema

from framegate.control.logs.catalog import EVENTS
from tests.fakes.deploying import module


@functools.cache
def _validator(event: str) -> Any:
    return jsonschema.Draft202012Validator(module("log_pages").json_schema()["$defs"][event])


def row_fault(row: dict[str, Any]) -> str:
    """What is wrong with a row; empty: nothing."""
    event = row.get("event")
    if event not in EVENTS:
        return f"no event {event!r}"
    return "; ".join(error.message for error in _validator(event).iter_errors(row))
