"""Kafka messages by kio, an implementation of Kafka's protocol of its own: random ones, encoded and decoded."""

import dataclasses
import datetime
import io
import os
import random
import types
import typing
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

HOST = "real-broker-"  # how the hosts of random answers begin
MUTATIONS = int(os.environ.get("FRAMEGATE_TEST_MUTATIONS", "3000"))  # how many mutated messages a test makes
ERRORS = list(ErrorCode)
_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


@cache
def schema(key: int, version: int, answer: bool) -> Any:
    return (load_response_schema if answer else load_request_schema)(key, version)


def integer(rng: random.Random, bits: int) -> int:
    """An integer of any size: small ones and the edges are as likely as large ones."""
    limit = 1 << rng.randint(0, bits)
    return rng.choice((-limit, rng.randint(-limit, limit - 1), limit - 1))


def text(rng: random.Random, name: str) -> str:
    if name == "host":
        return rng.choice((f"{HOST}{rng.randint(0, 9)}", f"{HOST}{'x' * rng.choice((100, 115, 116, 200))}", ""))
    return rng.choice(("", "a", "orders-1", "Straße €", "t" * 126, "t" * 127, "t" * 300))


MAKE: dict[str, Callable[[random.Random, str], Any]] = {
    **{kind: lambda rng, name, bits=bits: integer(rng, bits) for kind, bits in _INTEGERS.items()},
    "uint16": lambda rng, name: rng.randint(0, 65535),
    "bool": lambda rng, name: rng.random() < 0.5,
    "float64": lambda rng, name: rng.uniform(-1e9, 1e9),
    "string": text,
    "bytes": lambda rng, name: rng.randbytes(rng.choice((0, 1, 126, 127, 500))),
    "records": lambda rng, name: rng.randbytes(rng.choice((0, 1, 126, 127, 500, 20_000))),
    "error_code": lambda rng, name: rng.choice(ERRORS),
    "timedelta_i32": lambda rng, name: datetime.timedelta(milliseconds=rng.randint(0, 1 << 31 - 1)),
    "timedelta_i64": lambda rng, name: datetime.timedelta(milliseconds=rng.randint(0, 1 << 40)),
    "datetime_i64": lambda rng, name: datetime.datetime.fromtimestamp(rng.randint(0, 1 << 31), datetime.UTC),
    "uuid": lambda rng, name: uuid.UUID(int=rng.getrandbits(127) + 1),
}


@cache
def fields(kind: type) -> list[tuple[str, str | None, Any, bool, bool, Any]]:
    """The fields of an entity: name, Kafka's type or None for a struct, Python's type, whether it is an array, may be null, and its default."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        hint, nullable = hints[field.name], False
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            nullable = True
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        array = typing.get_origin(hint) is tuple
        inner = typing.get_args(hint)[0] if array else hint
        found.append((field.name, field.metadata.get("kafka_type"), inner, array, nullable, field.default))
    return found


def sample(kind: type, rng: random.Random, most: int = 3, least: int = 0) -> Any:
    """A random entity; arrays have ``least`` to ``most`` elements. With a ``least`` nothing is null or left at its default."""

    def one(name: str, primitive: str | None, inner: Any) -> Any:
        return sample(inner, rng, most, least) if primitive is None else MAKE[primitive](rng, name)

    values = {}
    for name, primitive, inner, array, nullable, default in fields(kind):
        if nullable and not least and rng.random() < 0.2:
            values[name] = None
        elif default is not dataclasses.MISSING and not least and rng.random() < 0.3:
            values[name] = default
        elif array:
            values[name] = tuple(one(name, primitive, inner) for _ in range(rng.randint(least, most)))
        else:
            values[name] = one(name, primitive, inner)
    return kind(**values)


def _encoded(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def answer_body(entity: Any, correlation_id: int = 7) -> bytes:
    """The body of an answer's frame, header included."""
    return _encoded(entity.__header_schema__(correlation_id=correlation_id)) + _encoded(entity)


def request_body(entity: Any, correlation_id: int = 7, client_id: str | None = "client") -> bytes:
    """The body of a request's frame, header included."""
    header = entity.__header_schema__(
        request_api_key=entity.__api_key__, request_api_version=entity.__version__, correlation_id=correlation_id, client_id=client_id
    )
    return _encoded(header) + _encoded(entity)


def decoded(body: bytes, key: int, version: int, *, answer: bool = True) -> Any:
    kind = schema(key, version, answer)
    _, start = entity_reader(kind.__header_schema__)(body, 0)
    entity, size = entity_reader(kind)(body, start)
    assert start + size == len(body)
    return entity


def told(entity: Any, address: Callable[[int], tuple[str, int]]) -> Any:
    """The entity with other addresses of brokers: a host that is not empty, and its port, by the node id beside it."""
    values = {name: getattr(entity, name) for name, *_ in fields(type(entity))}
    if values.get("host"):
        values["host"], values["port"] = address(values["node_id"] if "node_id" in values else values["broker_id"])
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = tuple(told(item, address) if dataclasses.is_dataclass(item) else item for item in value)
        elif dataclasses.is_dataclass(value):
            values[name] = told(value, address)
    return type(entity)(**values)


def mutated(body: bytes, rng: random.Random) -> bytes:
    """The body with one to three faults: other bytes, a few more or less, extreme lengths."""
    for _ in range(rng.randint(1, 3)):
        at, width = rng.randrange(len(body) + 1), rng.choice((1, 1, 2, 4))
        new = rng.choice((b"", b"\0" * width, b"\xff" * width, b"\x7f" + b"\xff" * (width - 1), rng.randbytes(width)))
        body = body[:at] + new + body[at + rng.choice((width, len(new))) :]
    return body
