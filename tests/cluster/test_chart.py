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


def install(room: Room, configuration: str) -> None:
    """Install the chart, or upgrade it: the webhook's pods are replaced."""
    path = room.folder / "config.yaml"
    path.write_text(configuration)
    command = ["helm", "upgrade", "--install", "framegate", str(CHART), "--namespace", room.name, "--wait", "--timeout", "180s"]
    done = room.command(*command, "--set", f"image={FRAMEGATE},imagePullPolicy=Never", "--set-file", f"config={path}", timeout_s=240.0)
    assert done.returncode == 0, f"{done.stderr}\n{room.story()}"


def uninstall(room: Room) -> None:
    assert room.command("helm", "uninstall", "framegate", "--namespace", room.name, "--wait").returncode == 0


def test_a_labelled_broker_gets_framegate_and_another_configuration_by_the_chart(room: Room, node: Node) -> None:
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
    finally:
        uninstall(room)
    assert node.kubectl("get", "mutatingwebhookconfigurations", "-o", "name") == ""
