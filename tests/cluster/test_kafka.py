"""A broker and its clients, each with framegate beside it: TLS between the pods, every record once, and the record of it in Spark's tables."""

import collections
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset
from ruamel.yaml import YAML

from tests.cluster.images import SPARK
from tests.cluster.node import wait_until
from tests.cluster.room import Room
from tests.cluster.workloads import CONFIGURATION, OUTBOUND, broker, certificates, client_job, component, injected, last_line, service

RECORDS = 50_000
SPARK_JOB = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "job.yaml"


def closed_connections(room: Room, pod: str, expected: int) -> list[dict[str, Any]]:
    """Rows of connections that are over, when no other is open."""

    def all_closed() -> list[dict[str, Any]]:
        closed = [row for row in room.rows(pod) if row["event"] == "closed"]
        return closed if len(closed) >= expected and "[]" in room.framegate(pod, "channels", "list", "--output", "json") else []

    return list(wait_until(all_closed, "the end of all connections", 60.0, 0.5))


def frames_of_tables(folder: Path) -> "collections.Counter[tuple[str, str]]":
    table = pyarrow.dataset.dataset(folder / "frames", partitioning="hive").to_table(columns=["connection", "direction"])
    return collections.Counter(zip(table["connection"].to_pylist(), table["direction"].to_pylist(), strict=True))


def test_every_record_arrives_once_through_tls_and_the_tables_equal_the_counts(room: Room) -> None:
    certificates(room)
    room.volume("framegate-tap")
    tables = room.claim("framegate-tables")
    component(room, CONFIGURATION, broker("kafka:9093"), service(), options=("tap-claim",))
    pod = room.wait_ready("app=kafka")

    # the client speaks plain text within its pod: its own framegate speaks TLS to the broker's
    alias = {"hostAliases": [{"ip": "127.0.0.1", "hostnames": ["kafka"]}]}
    producer = client_job("producer", "produce", "--servers", "kafka:9093", "--count", str(RECORDS), secret=None, **alias)
    room.apply_text(injected(room, OUTBOUND.replace("NAMESPACE", room.name), producer))
    said = last_line(room.wait_job("producer"))
    assert (said["sent"], said["acknowledged"], said["failed"], said["left"]) == (RECORDS, RECORDS, {}, 0)

    reader = client_job("reader", "consume", "--servers", "kafka:9093", "--ca", "/tls/ca.crt")
    room.apply(reader)
    read = last_line(room.wait_job("reader"))
    assert (read["seen"], read["doubled"], read["disordered"], read["holes"]) == (RECORDS, 0, 0, 0)

    rows = closed_connections(room, pod, 2)
    assert {row["tls"]["version"] for row in rows} == {"TLSv1.3"}
    job = room.wait_job(apply_spark(room))
    found = frames_of_tables(tables)
    counted = {(row["id"], "request"): row["frames"]["request"] for row in rows} | {
        (row["id"], "response"): row["frames"]["response"] for row in rows
    }
    assert found == collections.Counter({key: count for key, count in counted.items() if count}), job
    states = pyarrow.dataset.dataset(tables / "completeness", partitioning="hive").to_table().to_pylist()
    assert sum(row["lost"] or 0 for row in states) == 0


def apply_spark(room: Room) -> str:
    """The Job of deploy/spark, as it is; its name."""
    (job,) = [item for item in YAML(typ="safe").load_all(SPARK_JOB.read_text()) if item["kind"] == "Job"]
    assert [container["image"] for container in job["spec"]["template"]["spec"]["containers"]] == [SPARK]
    room.apply(json.loads(json.dumps(job)))
    return str(job["metadata"]["name"])
