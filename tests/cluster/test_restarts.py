"""Twenty restarts of the broker's pod and of its clients under load: nothing lost, doubled or reordered, and the order in which a pod ends."""

import collections
import json
import subprocess
import threading
import time
from typing import Any

import pytest

from tests.cluster.node import wait_until
from tests.cluster.room import Room, moment
from tests.cluster.workloads import (
    CONFIGURATION,
    OUTBOUND,
    broker,
    certificates,
    client_job,
    client_pod,
    component,
    document,
    injected,
    last_line,
    service,
)

RESTARTS = 20
RATE = 300
NOTICED_S = 5.0  # kubectl notices the end of a log so much later, at most


class Followed:
    """The output of a container to its end, which is read while the pod exists."""

    def __init__(self, room: Room, pod: str, container: str) -> None:
        self.ended = 0.0  # the end of the log, seconds of the epoch
        self._lines: list[str] = []
        self._process = subprocess.Popen(room.kubectl_command("logs", "--follow", pod, "-c", container), stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            self._lines.extend(printed)
        self.ended = time.time()

    def rows(self) -> list[dict[str, Any]]:
        """All rows, when the log has ended."""
        self._reader.join(60.0)
        self._process.wait(10.0)
        return [json.loads(line) for line in self._lines if line.startswith("{")]


def producers(room: Room) -> dict[str, Any]:
    """A Deployment whose pods produce until SIGTERM, and then write a report to the claim ``reports``."""
    alias = {"hostAliases": [{"ip": "127.0.0.1", "hostnames": ["kafka"]}], "restartPolicy": "Always", "terminationGracePeriodSeconds": 60}
    pod = client_pod(
        "produce", "--servers", "kafka:9093", "--rate", str(RATE), "--report", "/reports", secret=None, claims={"/reports": "reports"}, **alias
    )
    template = {"metadata": {"labels": {"app": "producer"}}, "spec": pod}
    return document("Deployment", "producer", {"replicas": 1, "selector": {"matchLabels": {"app": "producer"}}, "template": template}, "apps/v1")


@pytest.mark.timeout(1500)
def test_twenty_restarts_of_both_sides_lose_double_and_reorder_nothing(room: Room) -> None:
    certificates(room)
    room.claim("data")
    reports = room.claim("reports")
    component(room, CONFIGURATION, broker("kafka:9093", claim="data"), service())
    room.wait_ready("app=kafka")
    room.apply_text(injected(room, OUTBOUND.replace("NAMESPACE", room.name), producers(room)))
    room.wait_ready("app=producer")
    followed: list[tuple[Followed, Followed]] = []
    for _ in range(RESTARTS):
        pod = room.pod("app=kafka")
        followed.append((Followed(room, pod, "framegate"), Followed(room, pod, "main")))
        for workload in ("statefulset/kafka", "deployment/producer"):
            room.kubectl("rollout", "restart", workload)
            room.kubectl("rollout", "status", workload, "--timeout=120s", timeout_s=130.0)
        time.sleep(1.0)  # under load: some hundreds of records between two restarts
    room.kubectl("scale", "deployment/producer", "--replicas=0")
    wait_until(lambda: len(list(reports.glob("*.json"))) > RESTARTS and not room.pod("app=producer"), "the last producer's report", 90.0)
    said = [json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))]
    assert [report for report in said if report["failed"] or report["left"] or report["sent"] != report["acknowledged"]] == []

    room.apply(client_job("reader", "consume", "--servers", "kafka:9093", "--ca", "/tls/ca.crt"))
    read = last_line(room.wait_job("reader"))
    assert (read["doubled"], read["disordered"], read["holes"]) == (0, 0, 0)
    assert read["runs"] == {report["run"]: report["sent"] for report in said if report["sent"]}
    hidden = sum((collections.Counter(report["noted"]) for report in said), collections.Counter())
    print(f"\ncluster: {RESTARTS} restarts of both sides, {read['seen']} records, each once and in order; hidden by retries: {dict(hidden)}")
    for framegate, main in followed:
        main.rows()
        in_order(framegate.rows(), main.ended)


def in_order(rows: list[dict[str, Any]], main_ended: float) -> None:
    """Check the order: preStop removes readiness, then the application ends, then SIGTERM ends framegate; the drain's timeout closes no
    connection."""
    told = [(row["event"], row.get("accept"), moment(row)) for row in rows if row["event"] in ("drain_began", "stopping", "drain_ended")]
    assert [(event, accept) for event, accept, _ in told] == [
        ("drain_began", "until_stop"),
        ("stopping", None),
        ("drain_began", "refuse"),
        ("drain_ended", None),
    ], rows[-20:]
    pre_stop, terminated = told[0][2], told[1][2]
    assert pre_stop < main_ended < terminated + NOTICED_S, (pre_stop, main_ended, terminated)
    assert [row for row in rows if row["event"] == "closed" and row["cause"] == "drain_timeout"] == []
