"""The Kustomize component: valid by Kubernetes' schemas, merged into a Deployment, and as restricted as it says."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from control.kubernetes.workload import KINDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPONENT = DEPLOY / "kustomize" / "framegate"
EXAMPLE = DEPLOY / "kustomize" / "example"
# The first version whose sidecars are on by default, and the newest that the validator knows.
VERSIONS = ("1.29", "1.37")
# Lists that a strategic merge joins by a key of their items; every other list is replaced.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
}


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


def strategic_merge(base: Any, patch: Any, key: str = "") -> Any:
    """Kubernetes' strategic merge, as far as the component needs it: maps merge, keyed lists merge, the rest is replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {name: strategic_merge(base.get(name), patch[name], name) if name in patch else base[name] for name in {**base, **patch}}
    if isinstance(base, list) and isinstance(patch, list) and key in MERGE_KEYS:
        merge_key = MERGE_KEYS[key]
        merged = {item[merge_key]: item for item in base}
        for item in patch:
            merged[item[merge_key]] = strategic_merge(merged.get(item[merge_key]), item)
        return list(merged.values())
    return patch


@pytest.fixture(scope="module")
def deployment() -> dict[str, Any]:
    patch = load(COMPONENT / "sidecar.yaml")
    del patch["metadata"]["name"]
    merged: dict[str, Any] = strategic_merge(load(EXAMPLE / "deployment.yaml"), patch)
    return merged


@pytest.fixture(scope="module")
def sidecar(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["initContainers"]
    return dict(container)


def port_of(container: dict[str, Any], name: str) -> int:
    return next(int(port["containerPort"]) for port in container["ports"] if port["name"] == name)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["namespace.yaml", "deployment.yaml", "service.yaml"])
def test_the_example_is_valid_by_the_schemas(name: str, version: str) -> None:
    kubernetes_validate.validate(load(EXAMPLE / name), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_merged_deployment_is_valid_by_the_schemas(deployment: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(deployment, version, strict=True)


def test_the_schemas_would_find_a_misspelt_field(deployment: dict[str, Any]) -> None:
    wrong = strategic_merge(deployment, {"spec": {"template": {"spec": {"initContainers": [{"name": "framegate", "restartPolicies": "Always"}]}}}})
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicies"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_component_reaches_every_kind_of_workload_by_label(deployment: dict[str, Any]) -> None:
    component = load(COMPONENT / "kustomization.yaml")
    assert (component["apiVersion"], component["kind"]) == ("kustomize.config.k8s.io/v1alpha1", "Component")
    assert {patch["target"]["kind"] for patch in component["patches"]} == set(KINDS)
    for patch in component["patches"]:
        assert (COMPONENT / patch["path"]).is_file()
        label, _, value = patch["target"]["labelSelector"].partition("=")
        assert deployment["metadata"]["labels"][label] == value


def test_the_overlay_refers_to_files_that_are_there() -> None:
    overlay = load(EXAMPLE / "kustomization.yaml")
    assert all((EXAMPLE / name).is_file() for name in overlay["resources"])
    assert [(EXAMPLE / name).resolve() for name in overlay["components"]] == [COMPONENT]
    assert all((EXAMPLE / name).is_file() for generator in overlay["configMapGenerator"] for name in generator["files"])


def test_the_application_keeps_its_containers_and_gains_a_native_sidecar(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert containers == load(EXAMPLE / "deployment.yaml")["spec"]["template"]["spec"]["containers"]
    assert sidecar["restartPolicy"] == "Always"


def test_probes_ask_the_health_listener(sidecar: dict[str, Any]) -> None:
    probes = {kind: sidecar[f"{kind}Probe"]["grpc"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {kind: {"port": port_of(sidecar, "fg-health"), "service": f"framegate-{kind}"} for kind in probes}


def test_ports_are_those_of_the_configuration(sidecar: dict[str, Any]) -> None:
    configuration = load(EXAMPLE / "framegate.yaml")
    assert configuration["health"]["address"].endswith(f":{port_of(sidecar, 'fg-health')}")
    assert configuration["telemetry"]["prometheus"]["address"].endswith(f":{port_of(sidecar, 'fg-metrics')}")
    assert configuration["listeners"][0]["address"].endswith(f":{port_of(sidecar, 'framegate-data')}")
    service = load(EXAMPLE / "service.yaml")
    assert service["spec"]["ports"][0]["targetPort"] in {port["name"] for port in sidecar["ports"]}


def test_the_sidecar_meets_the_restricted_standard(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    context = sidecar["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == 10001
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    kinds = {key for volume in deployment["spec"]["template"]["spec"]["volumes"] for key in volume if key != "name"}
    assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI"}


def test_volumes_cover_what_the_configuration_names(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    configuration = load(EXAMPLE / "framegate.yaml")
    mounts = {mount["mountPath"]: mount for mount in sidecar["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert configuration["tap"]["directory"] in mounts
    assert str(Path(configuration["admin"]["address"].removeprefix("unix:")).parent) in mounts
    assert str(Path(configuration["listeners"][0]["tls"]["key"]).parent) in mounts
    assert all("subPath" not in mount for mount in mounts.values())
    generated = load(EXAMPLE / "kustomization.yaml")["configMapGenerator"][0]
    assert sidecar["args"] == ["serve", "--config", f"/etc/framegate/{generated['files'][0]}"]


def test_the_grace_period_outlasts_the_drain(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    drain = load(EXAMPLE / "framegate.yaml")["drain"]["timeout"]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= int(drain.removesuffix("s")) + 10
    command = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    assert command[1] == "drain"
    assert command[0].startswith("/opt/framegate/bin/")


def test_variables_are_declared_before_they_are_used(sidecar: dict[str, Any]) -> None:
    seen: set[str] = set()
    for variable in sidecar["env"]:
        used = {part.split(")")[0] for part in variable.get("value", "").split("$(")[1:]}
        assert used <= seen
        seen.add(variable["name"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_renders_the_overlay_as_the_merge_here_says(deployment: dict[str, Any]) -> None:
    rendered = subprocess.run(["kubectl", "kustomize", str(EXAMPLE)], check=True, capture_output=True, text=True, timeout=60).stdout
    documents = [document for document in YAML(typ="safe").load_all(rendered) if document["kind"] == "Deployment"]
    (theirs,) = documents
    kubernetes_validate.validate(theirs, VERSIONS[-1], strict=True)
    spec, expected = theirs["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]
    assert spec["initContainers"] == expected["initContainers"]
    assert spec["containers"] == expected["containers"]
