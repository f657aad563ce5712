"""A real API server checks injected manifests, the components and deploy/: strict validation, and pod security ``restricted``, enforced."""

import dataclasses
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from framegate.control.kubernetes.inject import RECORD, Injector, remove
from framegate.control.kubernetes.manifest import KINDS
from framegate.control.kubernetes.objects import SCALED, Wanted
from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS, read_configuration, requirements_of
from framegate.control.kubernetes.sidecar import Options, grace_least_s
from tests.cluster.components import OLDEST, VERSION, binaries
from tests.cluster.node import ApiServer, wait_until
from tests.cluster.room import Room

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
LEAST_S = grace_least_s(DEFAULT_REQUIREMENTS)
DEFINED = {"Certificate": "cert-manager.io_certificates", "PodMonitor": "monitoring.coreos.com_podmonitors",
           "PrometheusRule": "monitoring.coreos.com_prometheusrules"}  # fmt: skip
"""Custom resources that the server is taught."""


@dataclasses.dataclass
class Kubectl:
    """``kubectl`` against a server; both namespaces that tests use are restricted."""

    kubectl_path: Path
    config: Path

    def run(self, *words: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = [str(self.kubectl_path), f"--kubeconfig={self.config}", *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60.0, check=False)

    def apply(self, text: str, *words: str, namespace: str = "restricted") -> list[str]:
        """The line of kubectl for each object; a warning is an error."""
        done = self.run("apply", "--namespace", namespace, "--validate=strict", "-f", "-", *words, given=text)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    def create_pod(self, template: dict[str, Any]) -> str:
        """Create a pod of a template, as a dry run; the error, or ""."""
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {**template.get("metadata", {}), "name": "probe"}}
        done = self.run("create", "--namespace", "restricted", "--dry-run=server", "--validate=strict", "-f", "-", given=json.dumps(pod))
        return done.stderr


@pytest.fixture(scope="module")
def api_server(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    rooms = [Room(cluster, name, tmp_path_factory.mktemp("dry-run") / name) for name in ("restricted", "framegate-example")]
    for room in rooms:
        room.create()
    files = [word for name in DEFINED.values() for word in ("-f", str(binaries() / "definitions" / f"{name}.yaml"))]
    cluster.kubectl("create", "--validate=warn", *files)  # 1.29 does not know all of their fields
    try:
        cluster.kubectl("wait", "--for=condition=established", "--timeout=30s", *files)
        yield Kubectl(binaries() / "kubectl", cluster.config)
    finally:
        cluster.kubectl("delete", *files, check=False)
        for room in rooms:
            room.remove()


def workload(kind: str, name: str = "app", labels: dict[str, str] | None = None) -> dict[str, Any]:
    """An object of a kind whose pods are restricted."""
    container = {
        "name": "app",
        "image": "example.com/app:1",
        "ports": [{"name": "app", "containerPort": 9190}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    # without a token's volume, which the server adds to a Pod, and kubectl then would have it changed each time
    spec: dict[str, Any] = {"automountServiceAccountToken": False, "securityContext": context, "containers": [container]}
    pod: dict[str, Any] = {"metadata": {"labels": {"app": name}}, "spec": spec}
    metadata: dict[str, Any] = {"name": name, **({"labels": labels} if labels else {})}
    group, _ = KINDS[kind]
    head = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind}
    if kind == "Pod":
        return {**head, **pod, "metadata": {"name": name, "labels": {"app": name, **(labels or {})}}}
    if kind == "CronJob":
        spec["restartPolicy"] = "Never"
        return {**head, "metadata": metadata, "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": pod}}}}
    if kind == "Job":
        spec["restartPolicy"] = "Never"
        return {**head, "metadata": metadata, "spec": {"template": pod}}
    service = {"serviceName": name} if kind == "StatefulSet" else {}
    return {**head, "metadata": metadata, "spec": {"selector": {"matchLabels": {"app": name}}, "template": pod, **service}}


def template_of(item: dict[str, Any]) -> dict[str, Any]:
    found = item
    for key in KINDS[item["kind"]][1]:
        found = found[key]
    return found


def objects(text: str) -> list[dict[str, Any]]:
    return [item for item in YAML(typ="safe", pure=True).load_all(text) if item is not None]


def injector(**options: Any) -> Injector:
    path = DEPLOY / "kustomize" / "example" / "framegate.yaml"
    config, text, _ = read_configuration(path)
    wanted = Wanted(
        network_policy=True,
        disruption_budget=True,
        pod_monitor=True,
        issuer=("Issuer", "ca"),
        tap_claim_bytes=2 << 30 if "tap_claim" in options else 0,
    )
    return Injector(Options(**options), requirements_of(config, text, 1), wanted)


def block(item: dict[str, Any]) -> str:
    stream = io.StringIO()
    YAML(typ="rt").dump(item, stream)
    return stream.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_injected_is_let_in_for_every_kind(api_server: Kubectl, kind: str) -> None:
    for text in (block(workload(kind)), json.dumps(workload(kind))):
        injected = injector(probes="grpc").inject(text)
        said = api_server.apply(injected, "--dry-run=server")
        assert len(said) == (6 if kind in SCALED else 5)
        assert all(line.endswith("(server dry run)") for line in said)
        assert remove(injected)[0] == text
        loaded = objects(injected)[0]
        assert api_server.create_pod(template_of(loaded["items"][0] if loaded["kind"] == "List" else loaded)) == ""


def test_a_certificate_of_a_driver_is_let_in(api_server: Kubectl) -> None:
    item = workload("Deployment", "driven")
    attributes = {"csi.cert-manager.io/issuer-name": "ca", "csi.cert-manager.io/dns-names": "driven"}
    csi = {"driver": "csi.cert-manager.io", "readOnly": True, "volumeAttributes": attributes}
    template_of(item)["spec"]["volumes"] = [{"name": "spiffe", "csi": csi}]
    config, text, _ = read_configuration(DEPLOY / "kustomize" / "example" / "framegate.yaml")
    injected = Injector(Options(tls_volume="spiffe", any_user=True), requirements_of(config, text, 1), Wanted()).inject(block(item))
    api_server.apply(injected, "--dry-run=server")
    assert api_server.create_pod(template_of(objects(injected)[0])) == ""


def test_a_stream_of_json_documents_is_let_in_with_what_comes_beside_it(api_server: Kubectl) -> None:
    if os.environ.get(VERSION) == OLDEST:
        pytest.skip("this version of kubectl reads no such stream")
    text = f"{json.dumps(workload('Job', 'one'))}\n---\n{json.dumps(workload('Deployment', 'two'))}"
    assert len(api_server.apply(injector().inject(text), "--dry-run=server")) == 11


def test_what_would_not_be_restricted_is_refused(api_server: Kubectl) -> None:
    template = template_of(objects(injector().inject(block(workload("Pod"))))[0])
    template["spec"]["initContainers"][0]["securityContext"]["capabilities"] = {}
    assert 'violates PodSecurity "restricted:latest"' in api_server.create_pod(template)
    template["spec"]["initContainers"][0]["readinessProbe"]["perodSeconds"] = 1
    assert "unknown field" in api_server.create_pod(template)


def test_what_is_injected_and_applied_twice_is_unchanged(api_server: Kubectl) -> None:
    text = "---\n".join(block(workload(kind, f"twice-{kind.lower()}")) for kind in KINDS)
    injected = injector().inject(text)
    assert injector().inject(injected) == injected
    assert not any(line.endswith("unchanged") for line in api_server.apply(injected))
    changed = [line for line in api_server.apply(injected) if not line.endswith(" unchanged")]
    # the selector of a budget is replaced whole (its patch strategy), so kubectl sends it each time; the server then changes nothing
    assert [line for line in changed if not line.startswith("poddisruptionbudget.policy/")] == []


def test_a_rollback_brings_the_former_configuration_back_and_an_owner_takes_its_configurations_along(api_server: Kubectl) -> None:
    def mounted() -> str:
        found = api_server.run("get", "deployment", "rolled", "-n", "restricted", "-o", "json").stdout
        return str(template_of(json.loads(found))["spec"]["volumes"][0]["configMap"]["name"])

    text = block(workload("Deployment", "rolled"))
    names, given = [], injector()._needs
    for comment in ("# first\n", "# second\n"):
        needs = dataclasses.replace(given, text=f"{comment}{given.text}")
        api_server.apply(Injector(Options(), needs, Wanted()).inject(text))
        names.append(mounted())
        text = api_server.run("get", "deployment", "rolled", "-n", "restricted", "-o", "yaml").stdout  # from now on the cluster's
    assert len({*names}) == 2
    undone = api_server.run("rollout", "undo", "deployment/rolled", "-n", "restricted")
    assert undone.returncode == 0, undone.stderr
    assert mounted() == names[0]
    former = json.loads(api_server.run("get", "configmap", names[0], "-n", "restricted", "-o", "json").stdout)
    assert (former["data"]["framegate.yaml"][:8], former["immutable"]) == ("# first\n", True)
    api_server.run("delete", "deployment", "rolled", "-n", "restricted")
    left = ["get", "configmap", "-n", "restricted", "-o", "name", names[1], "--ignore-not-found"]
    wait_until(lambda: not api_server.run(*left).stdout, "the end of the owned ConfigMap", 60.0)
    assert api_server.run("get", "configmap", names[0], "-n", "restricted").returncode == 0, "one whose workload was not known is nobody's"


def overlay(folder: Path, *options: str) -> None:
    """A kustomization of every kind, with the component and options."""
    label = {"framegate.io/inject": "true"}
    for kind in KINDS:
        if not (options and kind == "DaemonSet"):
            (folder / f"{kind}.yaml").write_text(block(workload(kind, kind.lower(), label)))
    shutil.copy(DEPLOY / "kustomize" / "example" / "framegate.yaml", folder)
    components = [DEPLOY / "kustomize" / "framegate", *(DEPLOY / "kustomize" / "options" / name for name in options)]
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(path.name for path in folder.glob("[A-Z]*.yaml")),
        "components": [os.path.relpath(path, folder) for path in components],
        "configMapGenerator": [{"name": "framegate", "files": ["framegate.yaml"]}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(content))


def test_the_component_reaches_every_kind_and_is_let_in(api_server: Kubectl, tmp_path: Path) -> None:
    overlay(tmp_path)
    rendered = api_server.run("kustomize", str(tmp_path))
    assert (rendered.returncode, rendered.stderr) == (0, "")
    found = [item for item in objects(rendered.stdout) if item["kind"] in KINDS]
    assert {item["kind"] for item in found} == set(KINDS)
    for item in found:
        (sidecar,) = template_of(item)["spec"]["initContainers"]
        assert sidecar["restartPolicy"] == "Always"
        assert api_server.create_pod(template_of(item)) == ""
    api_server.apply(rendered.stdout, "--dry-run=server")


def test_the_component_refuses_to_replace_a_grace_period(api_server: Kubectl, tmp_path: Path) -> None:
    overlay(tmp_path)
    path = tmp_path / "Deployment.yaml"
    item = objects(path.read_text())[0]
    template_of(item)["spec"]["terminationGracePeriodSeconds"] = 600
    path.write_text(block(item))
    refused = api_server.run("kustomize", str(tmp_path))
    assert (refused.returncode, "terminationGracePeriodSeconds failed" in refused.stderr) == (1, True)
    item["metadata"]["annotations"] = {"framegate.io/grace-period": "own"}
    path.write_text(block(item))
    rendered = api_server.run("kustomize", str(tmp_path))
    graces = {item["kind"]: template_of(item)["spec"]["terminationGracePeriodSeconds"] for item in objects(rendered.stdout) if item["kind"] in KINDS}
    assert graces == {**dict.fromkeys(KINDS, graces["Pod"]), "Deployment": 600}
    assert graces["Pod"] >= LEAST_S


def test_the_policy_refuses_clashes_of_ports_and_short_grace_periods(api_server: Kubectl, tmp_path: Path) -> None:
    if "ValidatingAdmissionPolicy" not in api_server.run("api-resources", "--api-group=admissionregistration.k8s.io").stdout:
        pytest.skip("this version has no such policies")
    overlay(tmp_path)
    (pod,) = [template_of(item) for item in objects(api_server.run("kustomize", str(tmp_path)).stdout) if item["kind"] == "Pod"]
    clash, short, datagrams, checked = (json.loads(json.dumps(pod)) for _ in range(4))
    clash["spec"]["containers"][0]["ports"] = [{"containerPort": 9464}]
    short["spec"]["terminationGracePeriodSeconds"] = LEAST_S - 1
    datagrams["spec"]["containers"][0]["ports"] = [{"containerPort": 9464, "protocol": "UDP"}]
    checked["spec"]["terminationGracePeriodSeconds"] = LEAST_S - 1
    checked["metadata"]["annotations"] = {RECORD: "{}"}
    path = DEPLOY / "kustomize" / "checks.yaml"
    assert api_server.run("apply", "--validate=strict", "-f", str(path)).returncode == 0
    try:
        wait_until(lambda: "on which framegate listens" in api_server.create_pod(clash), "the policy", 60.0)
        assert f"terminationGracePeriodSeconds is less than {LEAST_S}" in api_server.create_pod(short)
        assert [api_server.create_pod(item) for item in (pod, datagrams, checked, template_of(workload("Pod")))] == [""] * 4
    finally:
        api_server.run("delete", "-f", str(path))


def test_options_and_alerts_are_let_in(api_server: Kubectl, tmp_path: Path) -> None:
    overlay(tmp_path, *(path.name for path in sorted((DEPLOY / "kustomize" / "options").iterdir())))
    rendered = api_server.run("kustomize", str(tmp_path))
    assert (rendered.returncode, rendered.stderr) == (0, "")
    found = objects(rendered.stdout)
    for item in found:
        if item["kind"] in KINDS:
            (tap,) = [volume for volume in template_of(item)["spec"]["volumes"] if volume["name"] == "framegate-tap"]
            assert tap == {"name": "framegate-tap", "persistentVolumeClaim": {"claimName": "framegate-tap"}}
    assert {item["kind"] for item in found} >= {"NetworkPolicy", "PodDisruptionBudget", "Certificate", "PodMonitor"}
    api_server.apply("---\n".join(map(block, found)), "--dry-run=server")
    bad = next(item for item in found if item["kind"] == "PodMonitor")
    bad["spec"]["podMetricsEndpoints"][0]["prot"] = "fg-metrics"
    refused = api_server.run("apply", "-n", "restricted", "--validate=strict", "--dry-run=server", "-f", "-", given=block(bad))
    assert 'unknown field "spec.podMetricsEndpoints[0].prot"' in refused.stderr
    api_server.apply((DEPLOY / "alerts" / "prometheus-rule.yaml").read_text(), "--dry-run=server")


def test_the_example_is_let_in(api_server: Kubectl) -> None:
    rendered = api_server.run("kustomize", str(DEPLOY / "kustomize" / "example"))
    assert (rendered.returncode, rendered.stderr) == (0, "")
    api_server.apply(rendered.stdout, "--dry-run=server", namespace="framegate-example")
    for item in objects(rendered.stdout):
        if item["kind"] in KINDS:
            assert api_server.create_pod(template_of(item)) == ""


@pytest.mark.parametrize("path", sorted((DEPLOY / "spark").glob("*.yaml")), ids=lambda path: path.name)
def test_the_spark_side_is_let_in(api_server: Kubectl, path: Path) -> None:
    known = [item for item in objects(path.read_text()) if item["kind"] != "SparkApplication"]
    for item in known:
        api_server.apply(block(item), "--dry-run=server")
        if item["kind"] in KINDS:
            assert api_server.create_pod(template_of(item)) == ""
