"""Calls of any method of the API, whose requests are JSON; and a node with one listener of each kind, whose configuration may be changed."""

import datetime
import json
import random
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from framegate.control.demo.certificates import Certificates
from framegate.control.service.access import METHODS
from tests.fakes.framegate import Framegate, Row, run_cli
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

PACKAGE: Final = "framegate.control.v1"
WHO: Final = b"who"
"""The frame that an upstream of ``Node`` answers with its own name."""


def described(method: str) -> MethodDescriptor:
    """The descriptor of ``Service/Method``."""
    service, _, name = method.partition("/")
    return descriptor_pool.Default().FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[name]


def send(channel: grpc.Channel, method: str, request: Row | bytes = b"", timeout: float = 40.0, cancel: float = 0.0) -> Any:
    """The answer to a call, of a stream None at its end; ``request`` is JSON or its bytes. ``cancel``: after so many seconds."""
    rpc = described(method)
    data = (
        request
        if isinstance(request, bytes)
        else json_format.ParseDict(request, message_factory.GetMessageClass(rpc.input_type)()).SerializeToString()
    )
    answer = message_factory.GetMessageClass(rpc.output_type).FromString
    if rpc.server_streaming:
        return [None for _ in channel.unary_stream(f"/{PACKAGE}.{method}", None, answer)(data, timeout=timeout)] and None
    call = channel.unary_unary(f"/{PACKAGE}.{method}", None, answer).future(data, timeout=timeout)
    if cancel:
        try:
            return call.result(cancel)
        except grpc.FutureTimeoutError:
            call.cancel()
    return call.result()


def reason_of(error: grpc.RpcError) -> str:
    """The reason in the status of a refusal; empty: it has none."""
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()  # type: ignore[arg-type]
    return info.reason if status is not None and status.details and status.details[0].Unpack(info) else ""


# --- any request -------------------------------------------------------------------------------------------------------------

TEXTS: Final = [
    "",
    "a",
    "b",
    "tls",
    "kafka",
    "sasl",
    "m",
    "d0",
    "t0",
    "t1",
    "u1",
    "*",
    "none",
    "x" * 300,
    "x\ny",
    "ünï ☃",
    "0",
    "127.0.0.9/32",
    "::/0",
]
FILTERS: Final = ["listener=m", "listener=d* held>1MiB", "bytes_rate>1", "waiting=none", "id=", "a=b", '"', "listener=" + "[" * 50, "x" * 2000]
NUMBERS: Final = [0, 0, 1, 2, 3, 7, -1, 100, 1000, 4096, 1 << 16, 1 << 20, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
PATHS: Final = ["*", "size_bytes", "level", "max_receive_size_bytes", "per_address.max_connection_count", "rules", "etag", "a.b", "", "..", "x" * 500]


def anything(message: Any, chance: random.Random, depth: int = 0) -> Any:
    """A message whose fields have any values that their types allow, some of which mean something here."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.4 or (field.message_type is not None and depth > 4):
            continue
        if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            count = chance.choice([0, 1, 1, 2, 3, 1500 if chance.random() < 0.02 else 1])
            held = getattr(message, field.name)
            for _ in range(count):
                if field.message_type is not None:
                    anything(held.add(), chance, depth + 1)
                else:
                    held.append(_scalar(field, chance))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            anything(getattr(message, field.name), chance, depth + 1)
        else:
            setattr(message, field.name, _scalar(field, chance))
    return message


def _scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    if field.name == "request_id":
        return chance.choice(["", "7", "6f0e8a52-0b3c-4d7e-9a66-0d5f4c1b2a39", str(datetime.datetime.now())])
    if field.name == "processor_count":
        return chance.choice([-1, 0, 1, 2, 3, 1 << 20])
    if field.enum_type is not None:
        return chance.choice([*(value.number for value in field.enum_type.values), 99])
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice([0, 16, 32, 64]))
        case FieldDescriptor.CPPTYPE_STRING:
            known = {"filter": FILTERS, "order_by": FILTERS, "paths": PATHS, "text": ["", "{", "node: x", "listeners: [1]", "&a [*a]", "\0"]}
            return chance.choice(known.get(field.name, TEXTS))
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return chance.choice([0.0, 0.5, 1.0, -1.0, 1e300, float("inf"), float("nan")])
        case FieldDescriptor.CPPTYPE_INT64:
            return chance.choice(NUMBERS)
        case _:
            return max(-(1 << 31), min((1 << 31) - 1, chance.choice(NUMBERS)))


CALLED: Final = sorted(name.removeprefix(f"{PACKAGE}.") for name in METHODS if not name.endswith("/DrainProxy"))
"""All methods but the one after which there is nothing to call."""


def any_call(chance: random.Random) -> tuple[str, bytes, dict[str, float]]:
    """A method, a request, and how its call ends: good, bad, random or changed bytes, huge, cancelled, out of time."""
    method = chance.choice(CALLED)
    data: bytes = anything(message_factory.GetMessageClass(described(method).input_type)(), chance).SerializeToString()
    kind = chance.random()
    if kind < 0.08:
        data = chance.randbytes(chance.randrange(200))
    elif kind < 0.14 and data and "ProcessorPool" not in method:
        place = chance.randrange(len(data))
        data = data[:place] + chance.randbytes(1) + data[place + 1 :]
    elif kind < 0.16:
        data = data + b"\xfa\x3f" + b"\x80\x80\x10" + bytes(1 << 18)  # an unknown field
    ending: dict[str, float] = {"timeout": 0.05} if described(method).server_streaming else {}
    if chance.random() < 0.15 and not ending:
        ending = {chance.choice(["timeout", "cancel"]): chance.uniform(0.0005, 0.02)}
    return method, data, ending


# --- a node ------------------------------------------------------------------------------------------------------------------


def tagged(name: str) -> Callable[[socket.socket], None]:
    """An echo that can be asked for its name."""

    def script(sock: socket.socket) -> None:
        while True:
            body = read_frame(sock)
            sock.sendall(frame(name.encode() if body == WHO else body))

    return script


def kafka(sock: socket.socket) -> None:
    """Answers each request with its correlation id and two bytes."""
    while True:
        sock.sendall(frame(read_frame(sock)[4:8] + b"ok"))


class Node:
    """A framegate before echoes ``u1`` and ``u2`` and what looks like a broker; listeners ``d0`` to ``d3`` may be added. Close it.

    Attributes:
        config: that of the start; ``with_listeners`` makes others.
    """

    def __init__(self, folder: Path, made: Certificates, **more: Any) -> None:
        self.upstreams = {name: ScriptedUpstream(tagged(name)) for name in ("u1", "u2")} | {"broker": ScriptedUpstream(kafka)}
        run_cli("users", "add", "first", "--file", str(folder / "users"), text="x\n")
        self.tls = ssl.create_default_context(cafile=str(made.ca))
        given: dict[str, Row] = {
            "a": {},
            "b": {},
            "m": {},
            "tls": {"tls": {"certificate": str(made.server), "key": str(made.server_key)}},
            "kafka": {"protocol": "kafka", "kafka": {"rules": []}, "upstream": "broker"},
            "sasl": {"protocol": "kafka", "sasl": {"mechanisms": ["PLAIN"], "users": "users"}, "upstream": "broker"},
        }
        endpoints = {name: upstream.address for name, upstream in self.upstreams.items()}
        self.endpoints = endpoints | {"both": ""}
        self.config: Row = {
            "processors": 2,
            "memory_pool": {"size": "8MiB"},
            "listeners": [self.listener(name, **keys) for name, keys in given.items()],
            "upstreams": [
                *({"name": name, "endpoints": [address]} for name, address in endpoints.items()),
                {"name": "both", "endpoints": [{"address": endpoints[name], "weight": 1} for name in ("u1", "u2")]},
            ],
            "tap": {"directory": "tap", "budget": "128MiB", "rules": [{"name": "t0", "listeners": ["b"]}]},
            **more,
        }
        self.proxy = Framegate(folder, self.config)
        self.config = self.proxy.config

    @staticmethod
    def listener(name: str, **keys: Any) -> Row:
        return {"name": name, "address": "127.0.0.1:0", "upstream": "both", "max_receive_size": "16KiB", **keys}

    def write(self, text: str | Row) -> None:
        """Exchange the file of the start in one step."""
        path = self.proxy.folder / "framegate.yaml"
        path.with_suffix(".new").write_text(text if isinstance(text, str) else json.dumps(text))
        path.with_suffix(".new").rename(path)

    def close(self) -> None:
        self.proxy.__exit__(None, None, None)
        for upstream in self.upstreams.values():
            upstream.close()


def kafka_request(correlation: int) -> bytes:
    """ListGroups, version 0."""
    return frame(struct.pack(">hhih", 16, 0, correlation, -1))
