"""The chart, installed on the node: pods get framegate by label, pass traffic, and are created while a replica of the webhook is replaced."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.images import FRAMEGATE
from tests.cluster.node import Node
from tests.cluster.room import Room
from tests.cluster.workloads import CONFIGURATION, broker, certificates, client_job, last_line, service

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm"
RECORDS = 5_000


def labelled(item: dict[str, Any]) -> dict[str, Any]:
    item["spec"]["template"]["metadata"]["labels"]["framegate.io/inject"] = "true"
    return item


def install(room: Room, configuration: str, release: str = "framegate") -> None:
    """Install the chart, or upgrade it: the webhook's pods are replaced."""
    path = room.folder / "config.yaml"
    path.write_text(configuration)
    command = ["helm", "upgrade", "--install", release, str(CHART), "--namespace", room.name, "--wait", "--timeout", "180s"]
    done = room.command(*command, "--set", f"image={FRAMEGATE},imagePullPolicy=Never", "--set-file", f"config={path}", timeout_s=240.0)
    assert done.returncode == 0, f"{done.stderr}\n{room.story()}"


def uninstall(room: Room, release: str = "framegate") -> None:
    """Uninstall it; nothing of the release is left."""
    assert room.command("helm", "uninstall", release, "--namespace", room.name, "--wait").returncode == 0
    kinds = (
        "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
    )
    names = room.kubectl("get", kinds, "-o", "name").splitlines()
    assert [name for name in names if f"{release}-webhook" in name] == []


def test_a_labelled_broker_gets_framegate_and_another_configuration_by_the_chart_and_a_rollback_takes_it_back(room: Room, node: Node) -> None:
    certificates(room)
    install(room, CONFIGURATION)
    try:
        room.apply(labelled(broker("kafka:9093")), service())
        pod = room.wait_ready("app=kafka")
        assert room.sidecar(pod)["started"]
        room.apply(client_job("producer", "produce", "--servers", "kafka:9093", "--ca", "/tls/ca.crt", "--count", str(RECORDS)))
        said = last_line(room.wait_job("producer"))
        assert (said["sent"], said["acknowledged"], said["failed"], said["left"]) == (RECORDS, RECORDS, {}, 0)

        install(room, CONFIGURATION.replace("node: kafka", "node: changed"))
        room.kubectl("delete", "pod", "--wait=false", room.pod("app.kubernetes.io/name=framegate-webhook"))
        room.kubectl("delete", "pod", pod)
        pod = room.wait_ready("app=kafka")
        assert "node: changed" in room.get("pod", pod)["metadata"]["annotations"]["framegate.io/configuration"]
        assert "changed" in json.dumps(json.loads(room.framegate(pod, "status", "--output", "json")))

        done = room.command("helm", "rollback", "framegate", "1", "--namespace", room.name, "--wait", "--timeout", "180s", timeout_s=240.0)
        assert done.returncode == 0, done.stderr
        install(room, CONFIGURATION, "second")
        try:
            room.kubectl("delete", "pod", pod)
            found = room.get("pod", room.wait_ready("app=kafka"))
            assert "node: kafka" in found["metadata"]["annotations"]["framegate.io/configuration"]
            assert [item["name"] for item in found["spec"]["initContainers"]] == ["framegate"]
        finally:
            uninstall(room, "second")
    finally:
        uninstall(room)
    assert node.kubectl("get", "mutatingwebhookconfigurations", "-o", "name") == ""
