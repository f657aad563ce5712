"""The objects beside a pod are valid and choose its pods."""

import dataclasses
import re
from typing import Any

import kubernetes_validate
import pytest

from framegate.control.kubernetes.manifest import KINDS, ManifestError, Workload, read_manifest, workloads
from framegate.control.kubernetes.objects import Wanted, key_of, objects_for, options_of
from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS
from framegate.control.kubernetes.sidecar import Options
from tests.fakes.cases import each_of

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


def made(wanted: Wanted = ALL, text: str = DEPLOYMENT, configuration: str | None = None, **needs: Any) -> dict[str, dict[str, Any]]:
    needed = dataclasses.replace(DEFAULT_REQUIREMENTS, text=configuration, **needs)
    found = objects_for(workload(text), Options(tap_claim="tap"), needed, wanted)
    return {item["kind"]: item for item in found}


def test_without_options_there_are_no_objects() -> None:
    assert made(Wanted()) == {}


def test_all_objects_are_valid_in_the_workloads_namespace_and_known_again() -> None:
    found = objects_for(workload(), Options(tap_claim="tap"), dataclasses.replace(DEFAULT_REQUIREMENTS, text="node: a\n"), ALL)
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
        for version in () if item["kind"] in ("Certificate", "PodMonitor") else ("1.29", "1.37"):
            kubernetes_validate.validate(item, version, strict=True)
    assert len({key_of(item) for item in found}) == len(found)


def test_a_config_map_is_named_by_workload_and_contents_and_is_owned_by_an_object_of_the_cluster() -> None:
    def named(text: str = DEPLOYMENT, configuration: str | None = "a", name: str | None = "c") -> str | None:
        needs = dataclasses.replace(DEFAULT_REQUIREMENTS, text=configuration)
        return options_of(workload(text), Options(config_map=name), needs, Wanted()).config_map

    assert re.fullmatch("c-lookup-[0-9a-f]{10}", named() or "")
    others = [DEPLOYMENT.replace("name: lookup", "name: other"), DEPLOYMENT.replace("Deployment", "StatefulSet")]
    assert len({named(), named(configuration="b"), named(name="d"), *map(named, others)}) == 5
    for longest in (DEPLOYMENT.replace("name: lookup", f"name: {'a' * length}") for length in (239, 240, 241, 253)):
        assert re.fullmatch("c-a+-[0-9a-f]{10}", named(longest) or "")
        assert len(named(longest) or "") <= 253
    assert re.fullmatch("c-without-a-name-[0-9a-f]{10}", named(DEPLOYMENT.replace("name: lookup, ", "")) or "")
    assert (named(configuration=None), named(name=None)) == ("c", None)
    config_map = made(Wanted(), configuration="a")["ConfigMap"]
    assert (config_map["immutable"], "ownerReferences" in config_map["metadata"]) == (True, False)
    owned = made(Wanted(), DEPLOYMENT.replace("name: lookup", "uid: 7-7, name: lookup"), configuration="a")["ConfigMap"]
    assert owned["metadata"]["ownerReferences"] == [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "lookup", "uid": "7-7"}]


def test_pods_are_chosen_as_the_workload_chooses_them_and_only_those_with_framegate() -> None:
    selector = {"matchLabels": {"app": "lookup", "framegate.io/sidecar": "true"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    found = made()
    assert found["PodDisruptionBudget"]["spec"]["selector"] == selector
    assert found["PodMonitor"]["spec"]["selector"] == selector
    assert found["NetworkPolicy"]["spec"]["podSelector"] == selector
    job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {metadata: {labels: {app: j}}, spec: {containers: []}}}\n"
    assert made(text=job)["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": {"app": "j", "framegate.io/sidecar": "true"}}
    unlabelled = job.replace("{app: j}", "{framegate.io/sidecar: 'true'}")
    selector = {"matchLabels": {"batch.kubernetes.io/job-name": "j", "framegate.io/sidecar": "true"}}
    assert made(text=unlabelled)["NetworkPolicy"]["spec"]["podSelector"] == selector


def test_labels_that_come_by_an_alias_are_those_it_stands_for() -> None:
    for was, now in (
        ("matchLabels: {app: lookup}", "matchLabels: *l"),
        ("selector: {matchLabels: {app: lookup}", "selector: {matchLabels: {app: *n}"),
        ("selector: {matchLabels: {app: lookup}, matchExpressions: [{key: tier, operator: Exists}]}", "selector: *s"),
    ):
        anchors = "{labels: &l {app: &n lookup}, a: &s {matchLabels: *l, matchExpressions: [{key: tier, operator: Exists}]}, name: lookup, "
        text = DEPLOYMENT.replace(was, now).replace("{name: lookup, ", anchors)
        assert "*" in text
        assert made(text=text)["NetworkPolicy"] == made()["NetworkPolicy"]


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p%s}\nspec: {containers: []}\n"
CRON = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c, labels: {a: b}}\nspec: {jobTemplate: {spec: {template: {spec: {containers: []}}}}}\n"


@each_of(
    ("text", "words"),
    [
        (POD % "", "no labels of their own"),
        (POD % ", labels: {}", "no labels of their own"),
        (POD % ", labels: {framegate.io/sidecar: 'true'}", "no labels of their own"),
        (CRON, "no labels of their own"),
        (
            CRON.replace("CronJob", "Job").replace("name: c", "generateName: c").replace("{jobTemplate: {spec: ", "").replace("}}}}", "}}"),
            "no labels",
        ),
        (DEPLOYMENT.replace("{app: lookup}", "{<<: {app: x}}"), "<< may bring others"),
        (POD % ", labels: &l {app: *l}", "an alias within itself"),
        (POD % ", labels: {app: 1}", "app is no text"),
        (POD % ", labels: {app: [[[[[[1]]]]]]}", "nested too deep"),
        (DEPLOYMENT.replace("matchLabels: {app: lookup}", "matchLabels: [a]"), "matchLabels is no text"),
    ],
)
def test_pods_without_labels_of_their_own_get_no_object_that_selects_pods(text: str, words: str) -> None:
    for wanted in (Wanted(network_policy=True), Wanted(pod_monitor=True), Wanted(disruption_budget=True)):
        with pytest.raises(ManifestError, match=words) as caught:
            made(wanted, text)
        assert caught.value.faults[0].line > 0
    assert made(Wanted(issuer=("Issuer", "ca")), text)


@each_of("kind", KINDS)
def test_a_budget_is_for_kinds_that_say_how_many_pods_they_want(kind: str) -> None:
    group, path = KINDS[kind]
    pod = "{metadata: {labels: {app: a}}, spec: {containers: []}}"
    for key in reversed(path):
        pod = f"{{{key}: {pod}}}"
    text = f"{{apiVersion: {group}/v1, kind: {kind}, metadata: {{name: a, labels: {{app: a}}}}, {pod[1:]}"
    if not path:
        text = POD.replace("p%s", "a, labels: {app: a}")
    found = made(Wanted(disruption_budget=True, network_policy=True), text)
    assert ("PodDisruptionBudget" in found) is (kind in ("Deployment", "StatefulSet", "ReplicaSet"))
    assert found["NetworkPolicy"]["metadata"]["name"] == f"a-{kind.lower()}-framegate"


def test_the_policy_leaves_the_applications_ports_open_except_those_that_framegate_connects_to() -> None:
    listed = "{containerPort: 9190}, {containerPort: 8080}, {containerPort: 9190, protocol: UDP}, {containerPort: 8080, name: same}"
    others = "initContainers: [{name: i, ports: [{containerPort: 0x50}]}]"
    text = DEPLOYMENT.replace("containers: []", f"containers: [{{name: a, ports: [{listed}]}}, {{name: b}}], {others}")
    (ingress,) = made(text=text, upstream_ports=(9190,), metrics_port=None)["NetworkPolicy"]["spec"]["ingress"]
    assert [(port["protocol"], port["port"]) for port in ingress["ports"]] == [("TCP", 9093), ("TCP", 8080), ("UDP", 9190), ("TCP", 80)]


def test_the_policy_opens_framegates_ports_and_no_others() -> None:
    ingress = made(data_ports=(1, 2), metrics_port=3)["NetworkPolicy"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in ingress] == [[1, 2], [3]]
    assert made(data_ports=(), metrics_port=None)["NetworkPolicy"]["spec"]["ingress"] == []
    ingress = made(data_ports=(1,), data_ranges=((9100, 9199),), inner_ranges=((2, 3),), metrics_port=None)["NetworkPolicy"]["spec"]["ingress"]
    assert ingress == [{"ports": [{"protocol": "TCP", "port": 1}, {"protocol": "TCP", "port": 9100, "endPort": 9199}]}]


def test_the_certificate_is_for_the_secret_that_is_mounted() -> None:
    certificate = made()["Certificate"]["spec"]
    assert certificate["secretName"] == "framegate-tls"
    assert certificate["issuerRef"] == {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "ca"}
    assert certificate["dnsNames"] == ["lookup", "lookup.prod.svc"]
    assert made(dataclasses.replace(ALL, dns_names=("x.example",)))["Certificate"]["spec"]["dnsNames"] == ["x.example"]
    assert "Certificate" not in made(tls_folder=None)
