"""The objects beside a pod are valid and choose its pods."""

import dataclasses
from typing import Any

import kubernetes_validate
import pytest

from control.kubernetes.manifest import read_manifest
from control.kubernetes.needs import DEFAULT_NEEDS
from control.kubernetes.objects import Wanted, key_of, objects_for
from control.kubernetes.sidecar import Options
from control.kubernetes.workload import Workload, workloads

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: lookup, namespace: prod}
spec:
  selector: {matchLabels: {app: lookup}, matchExpressions: [{key: tier, operator: Exists}]}
  template: {metadata: {labels: {app: lookup, version: "2"}}, spec: {containers: []}}
"""
ALL = Wanted(issuer=("ClusterIssuer", "ca"), network_policy=True, pod_monitor=True, disruption_budget=True, tap_claim_bytes=4 << 30)


def workload(text: str = DEPLOYMENT) -> Workload:
    (found,) = workloads(read_manifest(text))
    return found


def made(wanted: Wanted = ALL, text: str = DEPLOYMENT, **needs: Any) -> dict[str, dict[str, Any]]:
    found = objects_for(workload(text), Options(tap_claim="tap"), dataclasses.replace(DEFAULT_NEEDS, **needs), wanted)
    return {item["kind"]: item for item in found}


def test_nothing_is_made_that_nobody_asked_for() -> None:
    assert made(Wanted()) == {}


def test_all_of_them_are_in_the_workloads_namespace_and_known_again() -> None:
    found = objects_for(workload(), Options(tap_claim="tap"), dataclasses.replace(DEFAULT_NEEDS, text="node: a\n"), ALL)
    assert [item["kind"] for item in found] == [
        "ConfigMap",
        "Certificate",
        "PersistentVolumeClaim",
        "NetworkPolicy",
        "PodMonitor",
        "PodDisruptionBudget",
    ]
    for item in found:
        assert item["metadata"]["namespace"] == "prod"
        assert item["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "framegate-inject"}
    assert len({key_of(item) for item in found}) == len(found)


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_those_of_kubernetes_are_valid_by_its_schemas(version: str) -> None:
    found = objects_for(workload(), Options(tap_claim="tap"), dataclasses.replace(DEFAULT_NEEDS, text="node: a\n"), ALL)
    known = [item for item in found if item["kind"] not in ("Certificate", "PodMonitor")]
    assert len(known) == 4
    for item in known:
        kubernetes_validate.validate(item, version, strict=True)


def test_pods_are_chosen_as_the_workload_chooses_them_and_only_those_with_framegate() -> None:
    selector = {
        "matchLabels": {"app": "lookup", "framegate.io/sidecar": "true"},
        "matchExpressions": [{"key": "tier", "operator": "Exists"}],
    }
    found = made()
    assert found["PodDisruptionBudget"]["spec"]["selector"] == selector
    assert found["PodMonitor"]["spec"]["selector"] == selector
    assert found["NetworkPolicy"]["spec"]["podSelector"] == selector
    job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {metadata: {labels: {app: j}}, spec: {containers: []}}}\n"
    assert made(text=job)["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": {"app": "j", "framegate.io/sidecar": "true"}}
    bare = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n"
    assert made(text=bare)["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": {"framegate.io/sidecar": "true"}}


def test_the_policy_opens_framegates_ports_and_no_others() -> None:
    ingress = made(data_ports=(1, 2), metrics_port=3)["NetworkPolicy"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in ingress] == [[1, 2], [3]]
    assert made(data_ports=(), metrics_port=None)["NetworkPolicy"]["spec"]["ingress"] == []


def test_the_certificate_is_for_the_secret_that_is_mounted() -> None:
    certificate = made()["Certificate"]["spec"]
    assert certificate["secretName"] == "framegate-tls"
    assert certificate["issuerRef"] == {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "ca"}
    assert certificate["dnsNames"] == ["lookup", "lookup.prod.svc"]
    assert made(dataclasses.replace(ALL, dns_names=("x.example",)))["Certificate"]["spec"]["dnsNames"] == ["x.example"]
    assert "Certificate" not in made(tls_folder=None)
