"""A real API server asks ``framegate webhook``, which runs beside it with the rights that the chart gives, and creates the pods that it answers."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from framegate.control.kubernetes.cluster import ACCOUNT
from tests.cluster.components import binaries
from tests.cluster.node import NODE_ADDRESS, ApiServer, wait_until
from tests.cluster.room import Room

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "kustomize" / "example" / "framegate.yaml"
HOOK = "framegate-webhook"
LABEL = {"framegate.io/inject": "true"}
ADDRESS = "127.0.0.1:8443"


class Webhook:
    """The webhook, and a namespace of its pods."""

    def __init__(self, room: Room, pods: Room) -> None:
        self.room = room
        self.pods = pods

    def create(self, name: str, **pod: Any) -> "subprocess.CompletedProcess[str]":
        """Create a restricted pod with the label; ``pod``: parts of its metadata, a container's ports, more of its specification."""
        metadata = {"name": name, "labels": pod.pop("labels", LABEL), "annotations": pod.pop("annotations", {}), **pod.pop("metadata", {})}
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": specification(**pod)}
        return self.pods.command("kubectl", "--namespace", self.pods.name, "create", "--validate=strict", "-f", "-", given=json.dumps(item))

    def events(self) -> list[dict[str, Any]]:
        return [item for item in self.pods.get("events")["items"] if item["reason"] == "NotInjected"]


def specification(ports: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "app", "image": "example.com/app:1", "ports": ports or [], "securityContext": context}
    return {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container], **more}


def chart(room: Room, *words: str) -> list[dict[str, Any]]:
    version = f"--kube-version={room.node.version()}"
    done = room.command("helm", "template", "framegate", str(ROOT / "deploy" / "helm"), "--namespace", room.name, version, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [item for item in YAML(typ="safe").load_all(done.stdout) if item is not None]


@pytest.fixture(scope="module")
def webhook(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    rooms = [Room(cluster, name, tmp_path_factory.mktemp("admission") / name) for name in ("hook", "hooked")]
    for each in rooms:
        each.create()
    room, pods = rooms
    objects = [item for item in chart(room, "--set-file", f"config={EXAMPLE}") if item["kind"] != "Deployment"]
    for item in objects:
        if item["kind"] == "MutatingWebhookConfiguration":
            for hook in item["webhooks"]:
                hook["clientConfig"] = {"url": f"https://{ADDRESS}/inject"}
    room.apply(*objects)
    ACCOUNT.mkdir(parents=True, exist_ok=True)  # in this namespace of mounts
    for name, text in (
        ("token", room.kubectl("create", "token", HOOK)),
        ("namespace", room.name),
        ("ca.crt", (cluster.folder / "cluster.crt").read_text()),
    ):
        (ACCOUNT / name).write_text(text)
    command = [sys.executable, "-m", "framegate.control.cli", "webhook", "--listen", ADDRESS, "--name", HOOK, "--config", str(EXAMPLE)]
    environment = dict(os.environ, KUBERNETES_SERVICE_HOST=NODE_ADDRESS, KUBERNETES_SERVICE_PORT="26443")
    log = room.folder / "webhook.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until(lambda: "listening" in log.read_text(), "the webhook", 60.0, why=log.read_text)
        yield Webhook(room, pods)
        process.terminate()
        assert process.wait(20.0) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        for kind in ("mutatingwebhookconfiguration", "clusterrolebinding", "clusterrole"):  # of no namespace; the chart's test installs its own
            room.node.kubectl("delete", kind, HOOK, check=False)
        for each in rooms:
            each.remove()


def test_a_labelled_pod_gets_framegate_and_another_does_not(webhook: Webhook) -> None:
    done = webhook.create("labelled")
    assert done.returncode == 0, done.stderr
    assert "terminationGracePeriodSeconds, 30 as the API server writes where nobody has, becomes " in done.stderr
    assert "would violate" not in done.stderr
    pod = webhook.pods.get("pod", "labelled")
    (sidecar,) = pod["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("framegate", "Always")
    assert pod["metadata"]["annotations"]["framegate.io/configuration"] == EXAMPLE.read_text()
    assert pod["metadata"]["labels"]["framegate.io/sidecar"] == "true"
    assert pod["spec"]["terminationGracePeriodSeconds"] > 30
    assert any(volume["name"].startswith("kube-api-access") for volume in pod["spec"]["volumes"]), "what other plugins add stays"
    for name, labels in (("unlabelled", {}), ("off", {"framegate.io/inject": "false"})):
        assert webhook.create(name, labels=labels).returncode == 0
        assert "initContainers" not in webhook.pods.get("pod", name)["spec"]
    times = []
    for number in range(5):
        began = time.monotonic()
        assert webhook.create(f"timed-{number}").returncode == 0
        times.append(time.monotonic() - began)
    began = time.monotonic()
    assert webhook.create("alone", labels={}).returncode == 0
    print(f"\ncluster: a pod was created in {sorted(times)[2]:.2f} s with the webhook, in {time.monotonic() - began:.2f} s without")


def test_in_a_labelled_namespace_every_pod_gets_framegate_that_does_not_refuse_it(webhook: Webhook) -> None:
    webhook.pods.node.kubectl("label", "namespace", webhook.pods.name, "framegate.io/inject=true")
    try:
        cases = (("by-namespace", {"app": "a"}, True), ("by-both", LABEL, True), ("not", {"framegate.io/inject": "false"}, False))
        for name, labels, wanted in cases:
            assert webhook.create(name, labels=labels).returncode == 0
            assert ("initContainers" in webhook.pods.get("pod", name)["spec"]) is wanted, name
    finally:
        webhook.pods.node.kubectl("label", "namespace", webhook.pods.name, "framegate.io/inject-")


def test_a_pod_of_a_template_that_inject_changed_is_not_changed_again(webhook: Webhook) -> None:
    template = {"metadata": {"labels": {"app": "both", **LABEL}}, "spec": specification()}
    spec = {"selector": {"matchLabels": {"app": "both"}}, "template": template}
    item = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "both"}, "spec": spec}
    done = webhook.pods.command("framegate", "inject", "-f", "-", "--config", str(EXAMPLE), given=json.dumps(item))
    webhook.pods.apply_text(done.stdout)
    name = wait_until(lambda: webhook.pods.pod("app=both"), "a pod")
    (sidecar,) = webhook.pods.get("pod", name)["spec"]["initContainers"]
    volumes = {volume["name"]: volume for volume in webhook.pods.get("pod", name)["spec"]["volumes"]}
    assert (sidecar["name"], "configMap" in volumes["framegate-config"]) == ("framegate", True)


def test_a_deployment_that_cannot_get_framegate_yet_has_an_event_and_starts_once_it_can(webhook: Webhook) -> None:
    metadata = {"labels": {"app": "named", **LABEL}, "annotations": {"framegate.io/config": "mine", "framegate.io/tls-secret": "its-own"}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "named"}}, "template": {"metadata": metadata, "spec": specification()}}
    webhook.pods.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "named"}, "spec": spec})
    (event, *_) = wait_until(webhook.events, "an event")
    assert event["involvedObject"]["kind"] == "ReplicaSet"
    assert 'configmaps "mine" not found' in event["message"]
    assert webhook.pods.pod("app=named") == ""
    text = EXAMPLE.read_text().replace("node: echo", "node: named")
    webhook.pods.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"framegate.yaml": text}})
    name = wait_until(lambda: webhook.pods.pod("app=named"), "a pod", 90.0)
    pod = webhook.pods.get("pod", name)
    assert pod["metadata"]["annotations"]["framegate.io/configuration"] == text
    assert "its-own" in [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]


def test_a_clash_of_ports_is_refused_and_a_dry_run_leaves_no_event(webhook: Webhook) -> None:
    done = webhook.create("clash", ports=[{"containerPort": 9093}])
    assert done.returncode == 1
    assert "admission webhook" in done.stderr
    assert "container app has port 9093, on which framegate listens" in done.stderr
    assert "has terminationGracePeriodSeconds 20" in webhook.create("short", terminationGracePeriodSeconds=20).stderr
    count = len(webhook.events())
    assert count >= 2
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry", "labels": LABEL}, "spec": specification(ports=[{"containerPort": 9464}])}
    dry = webhook.pods.command("kubectl", "-n", webhook.pods.name, "create", "--dry-run=server", "-f", "-", given=json.dumps(item))
    assert (dry.returncode, "has port 9464" in dry.stderr) == (1, True)
    assert len(webhook.events()) == count


def test_a_pod_without_a_name_whose_owner_is_of_an_unknown_kind_is_refused_with_an_event_of_the_owner(webhook: Webhook) -> None:
    owner = {"apiVersion": "example.org/v1", "kind": "Widget", "name": "w", "uid": "7"}
    done = webhook.create("", metadata={"name": None, "generateName": "w-", "ownerReferences": [owner]}, hostNetwork=True)
    assert (done.returncode, "has hostNetwork: framegate's ports would be open on the node" in done.stderr) == (1, True), done.stderr
    (event,) = [item for item in webhook.events() if item["involvedObject"]["kind"] == "Widget"]
    assert (event["involvedObject"]["name"], "remove hostNetwork" in event["message"]) == ("w", True)
    done = webhook.create("", metadata={"name": None, "generateName": "w-"}, annotations={"framegate.io/env-secret": "taps"})
    assert done.returncode == 0, done.stderr
    name = done.stdout.split()[0].removeprefix("pod/")
    (sidecar,) = webhook.pods.get("pod", name)["spec"]["initContainers"]
    assert (name[:2], sidecar["envFrom"]) == ("w-", [{"secretRef": {"name": "taps"}}])


def test_a_certificate_that_is_lost_is_made_again_and_trusted(webhook: Webhook) -> None:
    def bundle() -> bytes:
        hooks = webhook.room.get("mutatingwebhookconfiguration", HOOK)["webhooks"]
        (found,) = {hook["clientConfig"]["caBundle"] for hook in hooks}
        return base64.b64decode(found)

    before = bundle()
    webhook.room.kubectl("patch", "secret", HOOK, "-p", '{"data": {"tls.crt": null}}')
    wait_until(lambda: bundle() != before, "another authority", 60.0)
    assert before in bundle(), "replicas that still serve the former certificate are trusted"

    def created() -> Callable[[], bool]:
        numbers = iter(range(100))
        return lambda: webhook.create(f"renewed-{next(numbers)}").returncode == 0

    wait_until(created(), "a pod", 30.0)


def test_the_chart_is_let_in_with_every_way_to_configure_it(cluster: ApiServer, webhook: Webhook) -> None:
    ways = [["--set", "replicas=1,failurePolicy=Ignore,onFault=admit"], ["--set", "issuerRef.kind=ClusterIssuer,issuerRef.name=internal"]]
    for words in ([], *ways):
        objects = [item for item in chart(webhook.room, *words) if item["kind"] != "Certificate"]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        webhook.room.apply_text(text, "--dry-run=server")
        (template,) = [item["spec"]["template"] for item in objects if item["kind"] == "Deployment"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": template["spec"]}
        done = webhook.room.command("kubectl", "-n", webhook.room.name, "create", "--dry-run=server", "-f", "-", given=json.dumps(pod))
        assert done.returncode == 0, done.stderr
    linted = subprocess.run(
        [str(binaries() / "helm"), "lint", "--strict", str(ROOT / "deploy" / "helm")], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout
