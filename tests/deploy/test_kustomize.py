"""The Kustomize components and Spark's manifests: valid by Kubernetes' schemas, merged into a Deployment, and as restricted as they say.

What a real API server says of them: tests/cluster/test_dry_run.py."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from framegate.control.cli.pipeline import run
from framegate.control.demo.generator import Options
from framegate.control.kubernetes.manifest import KINDS
from framegate.control.kubernetes.pod_requirements import read_configuration, requirements_of
from framegate.control.kubernetes.sidecar import Options as SidecarOptions
from framegate.control.kubernetes.sidecar import pod_template
from tests.fakes.cases import each_of
from tests.fakes.configuration import validate

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPONENT = DEPLOY / "kustomize" / "framegate"
EXAMPLE = DEPLOY / "kustomize" / "example"
PIPELINE = DEPLOY / "kustomize" / "options" / "spark" / "pipeline.yaml"
SPARK = DEPLOY / "spark"
# The first version whose sidecars are on by default, and the newest that the validator knows.
VERSIONS = ("1.29", "1.37")
# Lists that a strategic merge joins by a key of their items; every other list is replaced.
MERGE_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "ports": "containerPort", "volumeMounts": "mountPath"}


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
    merged: dict[str, Any] = load(EXAMPLE / "echo-deployment.yaml")
    for path in (COMPONENT / "sidecar.yaml", PIPELINE):
        patch = load(path)
        del patch["metadata"]["name"]
        merged = strategic_merge(merged, patch)
    return merged


@pytest.fixture(scope="module")
def sidecar(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["initContainers"]
    return dict(container)


@each_of("version", VERSIONS)
@each_of("name", ["namespace.yaml", "echo-deployment.yaml", "service.yaml", "client.yaml"])
def test_the_example_is_valid_by_the_schemas(name: str, version: str) -> None:
    kubernetes_validate.validate(load(EXAMPLE / name), version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_merged_deployment_is_valid_by_the_schemas(deployment: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(deployment, version, strict=True)


def test_the_component_reaches_every_kind_of_workload_by_label(deployment: dict[str, Any]) -> None:
    component = load(COMPONENT / "kustomization.yaml")
    assert (component["apiVersion"], component["kind"]) == ("kustomize.config.k8s.io/v1alpha1", "Component")
    assert {patch["target"]["kind"] for patch in component["patches"]} == set(KINDS)
    assert {patch["target"]["kind"] for patch in component["patches"] if "path" in patch} == set(KINDS)
    for patch in component["patches"]:
        assert "path" not in patch or (COMPONENT / patch["path"]).is_file()
        label, _, value = patch["target"]["labelSelector"].partition("=")
        assert deployment["metadata"]["labels"][label] == value


def test_the_budget_is_for_pods_of_kinds_that_say_how_many_they_want() -> None:
    folder = COMPONENT.parent / "options" / "disruption-budget"
    ((label, value),) = load(folder / "disruption-budget.yaml")["spec"]["selector"]["matchLabels"].items()
    patched = {item["target"]["kind"]: YAML(typ="safe").load(item["patch"]) for item in load(folder / "kustomization.yaml")["patches"]}
    assert set(patched) == {"Deployment", "StatefulSet", "ReplicaSet"}
    assert all(patch["spec"]["template"]["metadata"]["labels"] == {label: value} for patch in patched.values())
    assert label not in (COMPONENT / "sidecar.yaml").read_text()


def test_the_overlay_refers_to_files_that_are_there() -> None:
    overlay = load(EXAMPLE / "kustomization.yaml")
    assert all((EXAMPLE / name).is_file() for name in overlay["resources"])
    assert [(EXAMPLE / name).resolve() for name in overlay["components"]] == [COMPONENT, PIPELINE.parent]
    assert all((EXAMPLE / name).is_file() for generator in overlay["configMapGenerator"] for name in generator["files"])


def test_the_application_keeps_its_containers_and_gains_a_native_sidecar(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    assert containers == [
        *load(EXAMPLE / "echo-deployment.yaml")["spec"]["template"]["spec"]["containers"],
        *load(PIPELINE)["spec"]["template"]["spec"]["containers"],
    ]
    assert sidecar["restartPolicy"] == "Always"


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


def test_the_pods_own_group_and_so_the_modes_of_its_volumes_stay(deployment: dict[str, Any]) -> None:
    before = load(EXAMPLE / "echo-deployment.yaml")["spec"]["template"]["spec"]
    assert deployment["spec"]["template"]["spec"].get("securityContext") == before.get("securityContext")


def test_volumes_cover_what_the_configuration_names(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    configuration = load(EXAMPLE / "framegate.yaml")
    mounts = {mount["mountPath"]: mount for mount in sidecar["volumeMounts"]}
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == {name for name in volumes if name.startswith("framegate-")} - {"framegate-tables"}
    assert configuration["tap"]["directory"] in mounts
    assert str(Path(configuration["admin"]["address"].removeprefix("unix:")).parent) in mounts
    assert str(Path(configuration["listeners"][0]["tls"]["key"]).parent) in mounts
    assert all("subPath" not in mount for mount in mounts.values())
    generated = load(EXAMPLE / "kustomization.yaml")["configMapGenerator"][0]
    assert sidecar["args"] == ["serve", "--config", f"/etc/framegate/{generated['files'][0]}"]


def test_the_grace_period_outlasts_the_drain(deployment: dict[str, Any], sidecar: dict[str, Any]) -> None:
    """Which Kustomize sets where there is none: the patch's test refuses a workload that has its own."""
    drain = load(EXAMPLE / "framegate.yaml")["drain"]
    wait_s = sum(int(drain.get(key, default).removesuffix("s")) for key, default in (("timeout", "30s"), ("delay", "5s")))
    spec = deployment["spec"]["template"]["spec"]
    assert "terminationGracePeriodSeconds" not in spec
    patches = [item for item in load(COMPONENT / "kustomization.yaml")["patches"] if "patch" in item]
    assert {item["target"]["kind"] for item in patches} == set(KINDS)
    for item in patches:
        test, add = YAML(typ="safe").load(item["patch"])
        path = "/".join(("", *KINDS[item["target"]["kind"]][1], "spec", "terminationGracePeriodSeconds"))
        assert (test, add["op"], add["path"]) == ({"op": "test", "path": path, "value": None}, "add", path)
        assert add["value"] >= wait_s + 12
    (application,) = (item for item in spec["containers"] if item["name"] == "echo")
    assert application["lifecycle"]["preStop"]["sleep"]["seconds"] >= wait_s
    assert sidecar["lifecycle"]["preStop"]["exec"]["command"][:4] == ["/opt/framegate/bin/python", "-P", "-m", "framegate.control.pre_stop"]


def test_variables_are_declared_before_they_are_used(sidecar: dict[str, Any]) -> None:
    seen: set[str] = set()
    for variable in sidecar["env"]:
        used = {part.split(")")[0] for part in variable.get("value", "").split("$(")[1:]}
        assert used <= seen
        seen.add(variable["name"])


def test_the_application_is_reached_by_framegate_only_and_by_its_own_configuration() -> None:
    (listener,) = load(EXAMPLE / "echo.yaml")["listeners"]
    (upstream,) = load(EXAMPLE / "framegate.yaml")["upstreams"]
    assert upstream["endpoints"] == [listener["address"]]
    assert listener["address"].startswith("127.0.0.1:")
    validate(load(EXAMPLE / "echo.yaml"))


def test_the_client_is_the_load_generator_and_asks_the_service() -> None:
    (container,) = load(EXAMPLE / "client.yaml")["spec"]["template"]["spec"]["containers"]
    options = Options(**json.loads(container["args"][0]))
    service = load(EXAMPLE / "service.yaml")
    assert (options.host, options.port) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    assert container["command"][1:] == ["-m", "framegate.control.demo.generator"]


def pipelines() -> list[tuple[str, dict[str, Any]]]:
    """Containers that run the job, and whose they are."""
    found = [(path.name, item) for path in sorted(SPARK.glob("*.yaml")) for item in YAML(typ="safe").load_all(path.read_text())]
    found.append((PIPELINE.name, load(PIPELINE)))
    return [(name, item) for name, item in found if item["kind"] in ("Job", "Deployment")]


@each_of(("name", "item"), pipelines())
def test_the_arguments_of_the_pipeline_are_valid(name: str, item: dict[str, Any]) -> None:
    (container,) = item["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["pipeline", "run"]
    run.make_context("run", list(container["args"][2:]))
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/var/lib/framegate/tap", "/var/lib/framegate/tables", "/tmp"} == mounts
    assert {f"--source={path}" for path in mounts} & set(container["args"])
    assert {f"--output={path}" for path in mounts} & set(container["args"])


@each_of("path", sorted(SPARK.glob("*.yaml")))
def test_sparks_manifests_are_valid_by_the_schemas_and_name_this_version(path: Path) -> None:
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    text = path.read_text()
    assert text.count("framegate-spark:") == text.count(f"framegate-spark:{version}")
    for item in YAML(typ="safe").load_all(text):
        for schema in VERSIONS:
            kubernetes_validate.validate(item, schema, strict=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_renders_the_overlay_as_the_merge_here_says(deployment: dict[str, Any]) -> None:
    rendered = subprocess.run(["kubectl", "kustomize", str(EXAMPLE)], check=True, capture_output=True, text=True, timeout=60).stdout
    documents = [document for document in YAML(typ="safe").load_all(rendered) if document["kind"] == "Deployment"]
    (theirs,) = documents
    kubernetes_validate.validate(theirs, VERSIONS[-1], strict=True)
    spec, expected = theirs["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]
    assert spec["initContainers"] == expected["initContainers"]
    assert {container["name"]: container for container in spec["containers"]} == {
        container["name"]: container for container in expected["containers"]
    }


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_in_front_of_a_kafka_cluster_the_component_adds_what_inject_adds(tmp_path: Path) -> None:
    """But the tap's volume, which costs nothing."""
    shutil.copytree(COMPONENT.parent, tmp_path / "kustomize")
    folder = tmp_path / "overlay"
    folder.mkdir()
    shutil.copy(COMPONENT.parent / "options" / "kafka" / "framegate.yaml", folder)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app", "labels": {"framegate.io/inject": "true"}}}
    pod["spec"] = {"containers": [{"name": "app", "image": "example.org/app:1"}]}
    (folder / "app.yaml").write_text(json.dumps(pod))
    components = ["../kustomize/framegate", "../kustomize/options/kafka"]
    maps = [{"name": "framegate", "files": ["framegate.yaml"]}]
    (folder / "kustomization.yaml").write_text(json.dumps({"resources": ["app.yaml"], "components": components, "configMapGenerator": maps}))
    rendered = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True, timeout=60).stdout
    (spec,) = (item["spec"] for item in YAML(typ="safe").load_all(rendered) if item["kind"] == "Pod")
    config, text, _ = read_configuration(folder / "framegate.yaml")
    expected = pod_template(SidecarOptions(), requirements_of(config, text, 1))["spec"]
    ((ours,), (theirs,)) = expected["initContainers"], spec["initContainers"]
    assert theirs["ports"] == [{"name": port["name"], "containerPort": port["containerPort"]} for port in ours["ports"]]
    assert {mount["name"] for mount in theirs["volumeMounts"]} - {mount["name"] for mount in ours["volumeMounts"]} == {"framegate-tap"}
    assert {each["name"] for each in spec["volumes"]} - {each["name"] for each in expected["volumes"]} == {"framegate-tap"}
