"""Answers of a cluster whose brokers advertise only themselves, and what the clients of a listener in front of it are told."""

import dataclasses
import random
import struct
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from framegate.proxy.kafka.addresses import AdvertisedBrokers, SeenBroker
from framegate.proxy.relay.cluster import Cluster, RouteBrokers
from tests.fakes import kafka_frames, kio_messages
from tests.fakes.kio_messages import HOST, answer_body, decoded, fields, sample, schema
from tests.fakes.upstream import frame

METADATA: Final = 3
FETCH: Final = 1
PRODUCE: Final = 0
FIND_COORDINATOR: Final = 10
API_VERSIONS: Final = 18
HEARTBEAT: Final = 12
NODES: Final = (1, 2, 3)
SECRET: Final = HOST.encode()  # in every address of a broker, and in nothing that a client may read


def told(node: int) -> tuple[str, int]:
    """What clients are told about a broker; the bootstrap's address if it is none of ``NODES``."""
    return ("localhost", 9100 + node) if node in NODES else ("localhost", 9092)


def advertised() -> AdvertisedBrokers:
    return AdvertisedBrokers(*told(-1), {node: told(node) for node in NODES})


def cluster() -> Cluster:
    """The cluster with ``NODES`` in force."""
    made = Cluster("u")
    made.put([SeenBroker(node, f"{HOST}{node}", 9092, None) for node in NODES])
    return made


def brokers(hosts: str = "", *, narrow: bool = True) -> RouteBrokers:
    return RouteBrokers(cluster(), advertised(), hosts, narrow=narrow)


def metadata(correlation: int = 7, version: int = 12, nodes: tuple[int, ...] = NODES, topics: int = 0, rack: str | None = None) -> bytes:
    """The frame of a Metadata answer: brokers that name themselves, and so many topics of some 100 bytes."""
    kind = schema(METADATA, version, True)
    made = sample(kind, random.Random(1), 2)
    broker = _inner(kind, "brokers")
    rows = tuple(broker(node_id=i32(node), host=f"{HOST}{node}", port=i32(9092), **({} if version == 0 else {"rack": rack})) for node in nodes)
    topic = sample(_inner(kind, "topics"), random.Random(2), 1)
    topic = dataclasses.replace(topic, name="t" * 80, error_code=ErrorCode.none)
    return frame(answer_body(dataclasses.replace(made, brokers=rows, topics=(topic,) * topics), correlation))


def coordinator(correlation: int = 7, version: int = 2, node: int = 2) -> bytes:
    kind = schema(FIND_COORDINATOR, version, True)
    made = dataclasses.replace(sample(kind, random.Random(3)), node_id=i32(node), host=f"{HOST}{node}", port=i32(9092))
    return frame(answer_body(made, correlation))


def coordinators(correlation: int = 7, version: int = 4, groups: int = 8000) -> bytes:
    """The frame of a FindCoordinator answer for so many groups, of some 60 bytes each."""
    kind = schema(FIND_COORDINATOR, version, True)
    one = dataclasses.replace(sample(_inner(kind, "coordinators"), random.Random(3)), key="g" * 20, node_id=i32(2), host=f"{HOST}2", port=i32(9092))
    return frame(answer_body(dataclasses.replace(sample(kind, random.Random(3)), coordinators=(one,) * groups), correlation))


def fetch(correlation: int = 7, version: int = 17, records: int = 1000, nodes: tuple[int, ...] = (1, 2)) -> bytes:
    """The frame of a Fetch answer with so many bytes of records, and the endpoints of new leaders at its end."""
    kind = schema(FETCH, version, True)
    topic_kind = _inner(kind, "responses")
    partition = dataclasses.replace(sample(_inner(topic_kind, "partitions"), random.Random(4), 1), records=bytes(range(256)) * (records // 256 + 1))
    topic = dataclasses.replace(sample(topic_kind, random.Random(5), 1), partitions=(partition,))
    endpoint = _inner(kind, "node_endpoints")
    ends = tuple(endpoint(node_id=i32(node), host=f"{HOST}{node}", port=i32(9092)) for node in nodes)
    return frame(answer_body(dataclasses.replace(sample(kind, random.Random(6), 1), responses=(topic,), node_endpoints=ends), correlation))


def api_versions(correlation: int = 7, version: int = 3) -> bytes:
    """The frame of an ApiVersions answer of a broker from the future."""
    kind = schema(API_VERSIONS, version, True)
    row = _inner(kind, "api_keys")
    rows = tuple(row(api_key=key, min_version=0, max_version=99) for key in (0, 3, 18, 55, 300))
    return frame(answer_body(dataclasses.replace(sample(kind, random.Random(7)), api_keys=rows, error_code=ErrorCode.none), correlation))


def heartbeat(correlation: int = 7) -> bytes:
    """An answer without addresses: Heartbeat, version 0."""
    return kafka_frames.answer(correlation, struct.pack(">h", 0))


def _inner(kind: Any, name: str) -> Any:
    return next(inner for field, _, inner, *_ in fields(kind) if field == name)


def expected(data: bytes, key: int, version: int) -> Any:
    """The entity of a broker's frame as a client must read it: with the addresses that it is told."""
    return kio_messages.told(decoded(data[4:], key, version), told)
