"""The Helm chart: of this version, with a schema that knows every value, and rendered to valid objects where ``helm`` is.

What a real API server says of it: tests/cluster/test_admission.py.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from framegate.control.cli.commands import main
from framegate.control.kubernetes.admission import CONFIG, TLS_SECRET
from tests.fakes.deploying import module

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
VALUES = YAML(typ="safe").load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
HELM = shutil.which("helm", path=os.pathsep.join((os.environ["PATH"], *map(str, module("programs").cache_directory("").glob("cluster-*/bin")))))


def template(*words: str, version: str = "1.36") -> list[dict[str, Any]]:
    command = [str(HELM), "template", "framegate", str(CHART), "--namespace", "system", f"--kube-version={version}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [item for item in YAML(typ="safe").load_all(done.stdout) if item is not None]


def test_the_chart_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = YAML(typ="safe").load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"], VALUES["image"]) == (version, version, f"localhost/framegate:{version}")


def test_the_schema_knows_every_value_and_no_other() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    assert set(SCHEMA["properties"]) == {*VALUES, "global"}
    assert set(SCHEMA["properties"]["sidecar"]["properties"]) == set(VALUES["sidecar"])
    used = set(re.findall(r"\.Values\.(\w+)", "".join(path.read_text() for path in (CHART / "templates").iterdir())))
    assert used == set(VALUES)
    bad = ({"replicas": 0}, {"onFault": "ignore"}, {"failurePolicy": "fail"}, {"b": 1}, {"timeoutSeconds": 4}, {"timeoutSeconds": 31},
           {"issuerRef": {"kind": "Issuer"}}, {"sidecar": {"secrets": ["a"]}}, {"sidecar": {"cpu": "1.5m"}}, {"image": "a b"},
           {"image": "a@sha256:b"}, {"sidecar": {"envSecret": "A"}})  # fmt: skip
    for values in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**VALUES, **values}, SCHEMA)
    for name in ("sidecar", "namespaceSelector", "resources"):
        with pytest.raises(jsonschema.ValidationError, match=f"'{name}' is a required property"):
            jsonschema.validate({key: value for key, value in VALUES.items() if key != name}, SCHEMA)
    jsonschema.validate({**VALUES, "sidecar": {"cpu": 2}}, SCHEMA)


@pytest.mark.skipif(HELM is None, reason="helm is not installed")
def test_helm_lints_the_chart_and_what_it_renders_is_valid() -> None:
    linted = subprocess.run([str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False, timeout=60)
    assert linted.returncode == 0, linted.stdout
    issuer = ("--set", "issuerRef.kind=ClusterIssuer,issuerRef.name=a")
    for words in (
        (),
        issuer,
        ("--set", "config=node: a,replicas=1,sidecar.cpu=0.5,sidecar.secrets={s=/sasl},sidecar.envSecret=e,sidecar.anyUser=true"),
    ):
        for version in ("1.29", "1.36"):
            objects = template(*words, version=version)
            for item in objects:
                if item["kind"] != "Certificate":
                    kubernetes_validate.validate(item, version, strict=True)
        (deployment,) = [item for item in objects if item["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        command, *arguments = container["args"]
        given = [word for word in arguments if not word.startswith("--config=")]  # its file is in the pod
        done = CliRunner().invoke(main, [command, *given], env={"KUBERNETES_SERVICE_HOST": None})
        assert (done.exit_code, "needs a pod with a service account" in done.stderr) == (1, True), done.stderr


@pytest.mark.skipif(HELM is None, reason="helm is not installed")
def test_the_webhook_is_asked_about_labelled_pods_or_namespaces_and_never_about_itself() -> None:
    objects = {item["kind"]: item for item in template("--set", "namespaceSelector.matchLabels.team=a")}
    pods, namespaces = objects["MutatingWebhookConfiguration"]["webhooks"]
    label = {"framegate.io/inject": "true"}
    assert pods["objectSelector"] == {"matchLabels": label}
    assert namespaces["objectSelector"] == {"matchExpressions": [{"key": "framegate.io/inject", "operator": "NotIn", "values": ["true", "false"]}]}
    assert namespaces["namespaceSelector"] == {**pods["namespaceSelector"], "matchLabels": {**label, "team": "a"}}
    assert pods["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "kube-node-lease", "kube-public"]
    assert objects["Deployment"]["spec"]["template"]["metadata"]["labels"]["framegate.io/inject"] == "false"


def test_pages_and_values_name_the_annotations() -> None:
    for text in ((ROOT / "deploy" / "docs" / "kubernetes.md").read_text(), (CHART / "values.yaml").read_text()):
        assert CONFIG in text
        assert TLS_SECRET in text
