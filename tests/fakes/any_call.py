"""Calls of any method of the API: of one by its name, with a request as JSON or bytes; and of any at all."""

import random
import uuid
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from framegate.control.service.access import METHODS

PACKAGE: Final = "framegate.control.v1"
CALLED: Final = sorted(name.removeprefix(f"{PACKAGE}.") for name in METHODS if not name.endswith("/DrainProxy"))
"""All methods but the one after which there is nothing to call."""
TEXTS: Final = ["", "a", "b", "tls", "kafka", "sasl", "m", "d0", "t0", "u1", "*", "x" * 300, "x\ny", "ünï ☃", "0", "127.0.0.9/32", "::/0"]
FILTERS: Final = ["listener=m", "listener=d* held>1MiB", "bytes_rate>1", "waiting=none", "id=", "a=b", '"', "listener=" + "[" * 50, "x" * 2000]
TEXTS_OF: Final = {
    "filter": FILTERS, "order_by": FILTERS, "text": ["", "{", "node: x", "listeners: [1]", "&a [*a]", "\0"],
    "paths": ["*", "size_bytes", "level", "max_receive_size_bytes", "per_address.max_connection_count", "rules", "etag", "a.b", "..", "x" * 500],
}  # fmt: skip
NUMBERS: Final = [0, 0, 1, 2, 3, 7, -1, 100, 1000, 4096, 1 << 16, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
REALS: Final = [0.0, 0.5, 1.0, -1.0, 1e300, float("inf"), float("nan")]


def described(method: str) -> MethodDescriptor:
    service, _, name = method.partition("/")
    return descriptor_pool.Default().FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[name]


def send(channel: grpc.Channel, method: str, request: dict[str, Any] | bytes = b"", timeout: float = 40.0, cancel: float = 0.0) -> Any:
    """The answer to a call, of a stream None at its end. ``cancel``: after so many seconds."""
    rpc = described(method)
    made = message_factory.GetMessageClass(rpc.input_type)
    data = request if isinstance(request, bytes) else json_format.ParseDict(request, made()).SerializeToString()
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


def anything(message: Any, chance: random.Random, depth: int = 0) -> Any:
    """A message whose fields have any values that their types allow, some of which mean something to ``tests.fakes.live_node``."""
    for field in message.DESCRIPTOR.fields:
        held, inner = getattr(message, field.name), field.message_type
        if chance.random() < 0.4 or (inner is not None and (depth > 4 or inner.GetOptions().map_entry)):
            continue
        if field.is_repeated:
            for _ in range(1500 if chance.random() < 0.02 else chance.randrange(4)):
                held.append(_scalar(field, chance)) if inner is None else anything(held.add(), chance, depth + 1)
        elif inner is None:
            setattr(message, field.name, _scalar(field, chance))
        else:
            held.SetInParent()
            anything(held, chance, depth + 1)
    return message


def _scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    if field.name == "request_id":
        return chance.choice(["", "7", "6f0e8a52-0b3c-4d7e-9a66-0d5f4c1b2a39", str(uuid.UUID(int=chance.getrandbits(128)))])
    if field.name == "processor_count":
        return chance.choice([-1, 0, 1, 2, 3, 1 << 20])
    if field.enum_type is not None:
        return chance.choice([*(value.number for value in field.enum_type.values), 99])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(chance.choice([0, 16, 32, 64]))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return chance.choice(TEXTS_OF.get(field.name, TEXTS))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice(REALS)
    most = {FieldDescriptor.CPPTYPE_BOOL: 1, FieldDescriptor.CPPTYPE_INT32: (1 << 31) - 1}.get(field.cpp_type, (1 << 63) - 1)
    return max(-most - 1 if most > 1 else 0, min(most, chance.choice(NUMBERS)))


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
        data += b"\xfa\x3f\x80\x80\x10" + bytes(1 << 18)  # an unknown field
    if described(method).server_streaming:
        return method, data, {"timeout": 0.05}
    return method, data, {chance.choice(["timeout", "cancel"]): chance.uniform(0.0005, 0.02)} if chance.random() < 0.15 else {}
