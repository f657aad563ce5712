"""A configuration that does not start ends its rollout by itself, and ``kubectl rollout undo`` brings the former one back."""

import json
import sys
from typing import Any

from framegate.control.kubernetes.sidecar import CONTAINER
from tests.cluster.images import KAFKA
from tests.cluster.node import wait_until
from tests.cluster.room import Room
from tests.cluster.workloads import certificates, document, injected, restricted_container, restricted_pod

CONFIGURATION = """\
node: first
admin: {address: "unix:/run/framegate/admin.sock"}
health: {address: "0.0.0.0:9901"}
memory_pool: {size: 0}
listeners:
  - {name: in, address: "0.0.0.0:9093", upstream: app, tls: {certificate: /tls/tls.crt, key: /tls/tls.key}}
upstreams: [{name: app, endpoints: ["127.0.0.1:9190"]}]
drain: {timeout: 5s}
"""
WAIT = "import signal; signal.sigwait([signal.SIGTERM])"


def application() -> dict[str, Any]:
    """Two pods that do nothing until they are ended."""
    container = {"name": "main", "image": KAFKA, "imagePullPolicy": "Never", "args": ["-c", WAIT], "securityContext": restricted_container()}
    template = {"metadata": {"labels": {"app": "rolled"}}, "spec": {"securityContext": restricted_pod(), "containers": [container]}}
    return document("Deployment", "rolled", {"replicas": 2, "selector": {"matchLabels": {"app": "rolled"}}, "template": template}, "apps/v1")


def ready(room: Room) -> dict[str, str]:
    """The ConfigMap of each pod that is ready."""
    pods = room.get("pods", "-l", "app=rolled")["items"]
    there = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    good = [pod for pod in there if any((item["type"], item["status"]) == ("Ready", "True") for item in pod["status"].get("conditions", []))]
    return {pod["metadata"]["name"]: _config_map(pod["spec"]) for pod in good}


def pod_names(room: Room) -> list[str]:
    return [pod["metadata"]["name"] for pod in room.get("pods", "-l", "app=rolled")["items"]]


def _config_map(spec: dict[str, Any]) -> str:
    return str(next(volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume))


def test_a_bad_configuration_stops_its_rollout_and_undo_brings_the_former_one_back(room: Room) -> None:
    certificates(room)
    status = ["rollout", "status", "deployment/rolled"]
    room.apply_text(injected(room, CONFIGURATION, application()))
    room.kubectl(*status, "--timeout=120s", timeout_s=130.0)
    before = ready(room)
    assert len(before) == 2

    bad = CONFIGURATION.replace("tls.crt", "none.crt").replace("first", "second")  # a file that the Secret does not have
    room.apply_text(injected(room, bad, application()))

    def stands() -> bool:
        pods = room.get("pods", "-l", "app=rolled")["items"]
        fresh = [pod for pod in pods if _config_map(pod["spec"]) not in before.values()]
        return any(status.get("restartCount", 0) for pod in fresh for status in pod["status"].get("initContainerStatuses", []))

    wait_until(stands, "a new pod whose framegate does not start", 60.0, 0.5)
    assert ready(room) == before, "the former pods serve"
    (ended,) = [name for name in pod_names(room) if name not in before]
    wait_until(lambda: "/tls/none.crt: cannot be read" in room.kubectl("logs", ended, "-c", CONTAINER, check=False), "framegate's own reason", 30.0)
    assert room.sidecar(ended)["lastState"]["terminated"]["exitCode"] == 2
    over_pods = (sys.executable, "-P", "-m", "framegate.control.cli", "--kube", "-n", room.name, "-l", "app=rolled")
    found = room.command(*over_pods, "status")
    rows = [line.split()[:2] for line in found.stdout.splitlines()[1:]]
    assert (found.returncode, rows) == (6, [[name, "serving"] for name in sorted(before)]), found.stderr
    (named, last) = found.stderr.splitlines()
    assert last == "framegate: 1 of 3 pods failed"
    assert named.startswith("framegate: rolled-")
    assert CONTAINER in named, "its container does not run, or has ended meanwhile"
    room.kubectl("rollout", "undo", "deployment/rolled")
    room.kubectl(*status, "--timeout=120s", timeout_s=130.0)
    assert set(ready(room).values()) == set(before.values())
    room.kubectl("rollout", "restart", "deployment/rolled")
    room.kubectl(*status, "--timeout=120s", timeout_s=130.0)
    wait_until(lambda: len(pod_names(room)) == 2, "the end of the former pods", 60.0, 0.5)
    after = ready(room)
    assert (set(after.values()), after.keys() & before.keys()) == (set(before.values()), set())
    found = room.command(*over_pods, "status", "--output", "json")
    document = json.loads(found.stdout)
    assert (found.returncode, {name: row["node"] for name, row in document["pods"].items()}) == (0, dict.fromkeys(sorted(after), "first"))
    found = room.command(*over_pods, "drain", "--yes", "--reason", "test")
    assert (found.returncode, found.stderr) == (0, "")
    assert [line.split(maxsplit=1) for line in found.stdout.splitlines()[1:]] == [
        [name, "drained: 0 connections ended, none left"] for name in sorted(after)
    ]
