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
ANY_USER = 1_000_680_000
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
    left = collections.Counter((row["id"], "response") for row in rows if "lost" in row)  # the reader went before its last answer
    assert (collections.Counter(counted) - found, found - collections.Counter(counted)) == (left, {}), job
    states = pyarrow.dataset.dataset(tables / "completeness", partitioning="hive").to_table().to_pylist()
    assert sum(row["lost"] or 0 for row in states) == left.total()


def test_three_brokers_record_each_on_a_claim_of_its_own_which_a_new_pod_finds_again(room: Room) -> None:
    certificates(room)
    folders = [room.volume(f"tap-kafka-{number}", ANY_USER) for number in range(3)]
    for number in range(3):
        room.volume(f"data-kafka-{number}", ANY_USER)
    cluster = broker("$(POD_NAME).kafka:9093", brokers=3)
    template = cluster["spec"]["template"]["spec"]  # with certificates from two sources, and a user that the cluster has chosen
    template["securityContext"]["runAsUser"] = ANY_USER
    sources = [{"secret": {"name": "framegate-tls", "items": [{"key": key, "path": key}]}} for key in ("tls.crt", "tls.key")]
    template["volumes"] = [{"name": "certificates", "projected": {"sources": sources, "defaultMode": 292}}]
    options = ("--tap-claim", "tap", "--tap-claim-size", "2GiB", "--any-user", "--tls-volume", "certificates")
    room.apply_text(injected(room, CONFIGURATION, cluster, options=options))
    room.apply(service(clusterIP="None", publishNotReadyAddresses=True))
    status = ["rollout", "status", "statefulset/kafka", "--timeout=180s"]
    room.kubectl(*status, timeout_s=200.0)
    servers = ",".join(f"kafka-{number}.kafka:9093" for number in range(3))

    def exchange(number: int) -> int:
        room.apply(client_job(f"producer-{number}", "produce", "--servers", servers, "--ca", "/tls/ca.crt", "--count", "3000"))
        said = last_line(room.wait_job(f"producer-{number}"))
        assert (said["sent"], said["acknowledged"], said["failed"], said["left"]) == (3000, 3000, {}, 0)
        room.apply(client_job(f"reader-{number}", "consume", "--servers", servers, "--ca", "/tls/ca.crt"))
        return int(last_line(room.wait_job(f"reader-{number}"))["seen"])

    def streams(number: int) -> set[str]:
        return {path.name for path in folders[number].iterdir() if path.is_dir()}

    assert exchange(1) == 3000
    before = [streams(number) for number in range(3)]
    assert [len(found) for found in before] == [1, 1, 1]
    assert len(set().union(*before)) == 3, "each broker has a record of its own"
    room.kubectl("delete", "pod", "kafka-1", timeout_s=120.0)
    room.kubectl(*status, timeout_s=200.0)
    wait_until(lambda: room.sidecar("kafka-1")["ready"], "the new pod's framegate")
    assert exchange(2) == 6000
    after = [streams(number) for number in range(3)]
    assert (before[1] < after[1], before[0] == after[0], before[2] == after[2]) == (True, True, True)
    for number in range(3):
        said = room.framegate(f"kafka-{number}", "tap", "verify", "/var/lib/framegate/tap", "--output", "json", check=False)
        assert json.loads(said)["faults"] == [], said


def apply_spark(room: Room) -> str:
    """The Job of deploy/spark, as it is; its name."""
    (job,) = [item for item in YAML(typ="safe").load_all(SPARK_JOB.read_text()) if item["kind"] == "Job"]
    assert [container["image"] for container in job["spec"]["template"]["spec"]["containers"]] == [SPARK]
    room.apply(json.loads(json.dumps(job)))
    return str(job["metadata"]["name"])
