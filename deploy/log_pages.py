"""The catalog of rows (``framegate.control.logs.catalog``) as a JSON Schema, and as a table."""

import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NotRequired

from framegate.control.logs.catalog import COMMON, EVENTS, Event

__all__ = ["json_schema", "schema_text", "table_text"]

_PLAIN: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}
_WORDS: Final[Mapping[Any, str]] = {str: "text", bool: "true or false", int: "integer", float: "number", type(None): "null"}
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MEANINGS: Final = (
    ("id", "id of the connection, also in the API, in `framegate channels` and in the tap's tables"),
    ("listener", "name of the listener"),
    ("peer", "the client's address"),
    ("upstream", "name of the upstream; empty: a handler answers"),
    ("endpoint", "the address of the upstream that was tried last; empty: none"),
    ("broker", "node id of the Kafka broker that the client reached, of a listener with `brokers`; -1: the bootstrap"),
    ("principal", "principal of the client, from its certificate or login; left out: ANONYMOUS"),
    ("mechanism", "SASL mechanism of the login; left out: none"),
    ("tls", "version, cipher, and fingerprint of the server certificate that the client got; left out: plaintext, or no complete handshake"),
    ("frames", "frames received from the client (`request`) and from the upstream or handler (`response`) since the connection was opened"),
    ("bytes", "bytes of these frames"),
    ("opened_ns", "when the connection was accepted"),
    ("handshake_ns", "time of the TLS handshake and the login together, successful or not; left out: the listener needs neither"),
    ("connect_after_ns", "when the first attempt to connect to the upstream began: time since `opened_ns`; left out: none"),
    ("connect_ns", "time from then until one succeeded, TLS and login included, or the last failed; left out: neither"),
    ("attempts", "number of these attempts, each to one address; left out: 1"),
    (
        "attempt_started_ns",
        "when the last attempt that has ended began. Left out with the next three if there was none, or only one, without TLS and login: "
        "`connect_after_ns` and `connect_ns` have it",
    ),
    ("tcp_ns", "of that attempt: time to connect; `null`: it did not succeed"),
    ("tls_ns", "of that attempt: time of the TLS handshake; 0: without TLS; `null`: it was not finished"),
    ("login_ns", "of that attempt: time of the login; 0: without login; `null`: it was not finished"),
    (
        "state",
        "`handshaking`, `connecting_upstream`, `open`, `half_closed`, `closing`, `draining`; in `closed`: the state in which the cause occurred; "
        "left out: `half_closed`",
    ),
    ("muted", "why framegate does not read from the client (deploy/docs/errors-and-causes.md)"),
    ("muted_upstream", "why framegate does not read from the upstream"),
    ("in_flight", "requests without a response, with `protocol: kafka`; otherwise 0"),
    ("last_active_ns", "when a byte last moved"),
    ("lost", "bytes received that were not and will not be forwarded; left out: none"),
    (
        "mutes",
        "how often and how long the client was muted, by cause; not those in force, for no time, or of `connect_ns`; left out: none",
    ),
    ("cause", "why the connection ended (deploy/docs/errors-and-causes.md)"),
    ("detail", "details of the cause; left out: none"),
    ("side", "the side that caused the end: `downstream` (the client), `upstream`, or `internal` (framegate)"),
    ("duration_ms", "from `opened_ns` to the end of the connection, to the nanosecond"),
)  # Meaning of the fields in rows of connections


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is NotRequired else hint


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _schema(_bare(hint)) for name, hint in fields.items()},
        "required": [name for name, hint in fields.items() if typing.get_origin(hint) is not NotRequired],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    """The schema of a type that ``framegate.proxy.server.schema`` accepts."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if typing.is_typeddict(hint):
        return _object(typing.get_type_hints(hint, include_extras=True))
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is dict and parts[0] is str:
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if origin in (types.UnionType, typing.Union):
        return {"type": [_PLAIN[part] for part in parts]} if all(part in _PLAIN for part in parts) else {"anyOf": [_schema(part) for part in parts]}
    raise TypeError(f"no field of a row is declared as {hint}")


def _of_event(name: str, event: Event) -> dict[str, Any]:
    made = {"title": name, "description": event.says, **_object({**COMMON, **event.fields})}
    made["properties"] |= {"event": {"const": name}, "level": {"enum": list(event.levels)}}
    return made


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a row. Its event determines the other fields; an event that is not in the catalog is not valid."""
    return {
        "$schema": _DIALECT,
        "title": "A row of framegate's log",
        "type": "object",
        "required": ["time", "level", "event"],
        "properties": {"time": {"type": "string", "format": "date-time"}, "event": {"enum": list(EVENTS)}},
        "allOf": [{"if": {"properties": {"event": {"const": name}}, "required": ["event"]}, "then": {"$ref": f"#/$defs/{name}"}} for name in EVENTS],
        "$defs": {name: _of_event(name, event) for name, event in EVENTS.items()},
    }


def schema_text() -> str:
    """The text of ``deploy/log.schema.json``, one event a line."""
    schema = json_schema()
    rules = ",\n".join(json.dumps(rule) for rule in schema.pop("allOf"))
    events = ",\n".join(f"{json.dumps(name)}: {json.dumps(event)}" for name, event in schema.pop("$defs").items())
    head = json.dumps(schema)
    return f'{head[:-1]},\n"allOf": [\n{rules}\n],\n"$defs": {{\n{events}\n}}}}\n'


def _words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return "anything"
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return f"{{{', '.join(f'{name}: {_words(_bare(item))}' for name, item in hints.items())}}}"
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is list:
        return f"list of {_words(parts[0])}"
    if origin is dict:
        return f"{_words(parts[1])} by name"
    return " or ".join(map(_words, parts)) if parts else _WORDS[hint]


def _cell(fields: Mapping[str, Any]) -> str:
    return (
        "; ".join(f"`{name}`{'?' if typing.get_origin(hint) is NotRequired else ''}: {_words(_bare(hint))}" for name, hint in fields.items()) or "–"
    )


def table_text() -> str:
    """The text of ``deploy/log.md``."""
    head = (
        "# Rows of the log",
        "",
        "framegate writes one row per event to standard output. `log.schema.json` is the JSON Schema of the rows. Generated from the code by",
        "`make pages`; do not edit.",
        "",
        f"Every row has {_cell(COMMON)}. A `?` marks a field that is not in every row: `rows_dropped` is the number of rows",
        "that were dropped before this one, because standard output was blocked; `trace_id` and `span_id` name the span of a row. Fields whose name",
        "ends in `_ns` are nanoseconds; times are nanoseconds since 1970. `null` means unknown or none. A later release may add events",
        "and fields.",
        "",
        "| event | level | meaning | fields |",
        "|---|---|---|---|",
    )
    rows = (f"| `{name}` | {', '.join(event.levels)} | {event.says} | {_cell(event.fields)} |" for name, event in EVENTS.items())
    size = "The row `closed` of a Kafka client with TLS has about 0.6 KB. `log.access.sample` writes a share of those that ended well."
    fields = ("", "## Fields of `opened`, `access` and `closed`", "", size, "", "| field | meaning |", "|---|---|")
    meanings = (f"| `{name}` | {meaning} |" for name, meaning in MEANINGS)
    return "\n".join((*head, *rows, *fields, *meanings)) + "\n"
