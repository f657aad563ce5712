"""Twenty restarts of the broker's pod and of its clients under load: nothing lost, doubled or reordered, and the order in which a pod ends."""

import json
import subprocess
import threading
import time
from typing import Any

import pytest

from tests.cluster.components import binaries
from tests.cluster.node import wait_until
from tests.cluster.room import Room
from tests.cluster.sidecars import certificates, component, injected
from tests.cluster.workloads import CONFIGURATION, OUTBOUND, broker, client_job, client_pod, document, last_line, service

RESTARTS = 20
RATE = 300


class Followed:
    """The rows of one pod's framegate, to its very end: a pod that has gone has no log any more."""

    def __init__(self, room: Room, pod: str) -> None:
        self.pod = pod
        self.lines: list[str] = []
        command = [str(binaries() / "kubectl"), f"--kubeconfig={room.node.config}", "--namespace", room.name]
        self._process = subprocess.Popen([*command, "logs", "--follow", pod, "-c", "framegate"], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)

    def rows(self) -> list[dict[str, Any]]:
        """All rows, when the log has ended."""
        self._reader.join(30.0)
        self._process.wait()
        return [json.loads(line) for line in self.lines if line.startswith("{")]


def producers(room: Room) -> dict[str, Any]:
    """A Deployment whose pods produce until they are told to end, and then say what became of it in the claim ``reports``."""
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
    component(room, CONFIGURATION, broker("kafka:9093", claim="data", terminationGracePeriodSeconds=45), service())
    room.wait_ready("app=kafka")
    room.apply_text(injected(room, OUTBOUND.replace("NAMESPACE", room.name), producers(room)))
    room.wait_ready("app=producer")
    followed: list[Followed] = []
    for _ in range(RESTARTS):
        followed.append(Followed(room, room.pod("app=kafka")))
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
    print(f"\ncluster: {RESTARTS} restarts of both sides, {read['seen']} records, each once and in order; hidden by retries: "
          + str({name: sum(report["noted"].get(name, 0) for report in said) for report in said for name in report["noted"]}))  # fmt: skip
    for pod in followed:
        in_order(pod.rows())


def in_order(rows: list[dict[str, Any]]) -> None:
    """The drain begins with preStop, long before SIGTERM, and every connection is over when framegate ends."""
    events = [row["event"] for row in rows]
    assert "drain_began" in events, events[-20:]
