"""The Kustomize components of ``deploy/kustomize``: the same sidecar as ``inject`` adds, as patches that Kustomize merges.

``pages.py`` writes them; a test compares the files with this module.
"""

import json
import re
import textwrap
from typing import Any, Final

from framegate.control.kubernetes.edit import Layout, block_text
from framegate.control.kubernetes.inject import RECORD
from framegate.control.kubernetes.kafka_sidecar import kafka_configuration
from framegate.control.kubernetes.manifest import KINDS, read_manifest, workloads
from framegate.control.kubernetes.objects import SCALED, Wanted, objects_for
from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS
from framegate.control.kubernetes.sidecar import CONTAINER, SIDECAR_LABEL, USER, Options, grace_least_s, pod_template, template_text

__all__ = ["files"]

_SHAPES: Final = {"Deployment": "sidecar.yaml", "CronJob": "sidecar-cronjob.yaml", "Pod": "sidecar-pod.yaml"}
"""One patch for each shape of workload: Kustomize takes name and kind from the target."""
_LAYOUT: Final = Layout(2, 2, "\n")
_GENERATED: Final = "# Written by `make pages`, from control/kubernetes/sidecar.yaml.\n"
_CLAIM: Final = "framegate-tap"
_BUDGET_LABEL: Final = "framegate.io/disruption-budget"
_OWN_GRACE: Final = "framegate.io/grace-period"  # an annotation of a workload; with ``own`` its grace period is long enough
_LEAST_S: Final = grace_least_s(DEFAULT_REQUIREMENTS)
_GRACE: Final = re.compile(r"^(?:  #.*\n)*  terminationGracePeriodSeconds: .*\n", re.MULTILINE)


def files() -> dict[str, str]:
    """All generated files, by path below ``deploy/kustomize``."""
    written = {"framegate/kustomization.yaml": _component()}
    for kind, name in _SHAPES.items():
        written[f"framegate/{name}"] = _patch(kind)
    for name, (about, wanted) in _OPTIONS.items():
        budgeted = [{"target": _target(kind), "patch": _budget_patch(kind)} for kind in SCALED] if wanted.disruption_budget else []
        patches = {"patches": budgeted} if budgeted else {}
        written[f"options/{name}/kustomization.yaml"] = _option(about, {"resources": [f"{name}.yaml"], **patches})
        written[f"options/{name}/{name}.yaml"] = _GENERATED + _object(wanted)
    claims = [{"target": _target(kind), "patch": _claim_patch(kind)} for kind in KINDS if kind != "DaemonSet"]
    written["options/tap-claim/tap-claim.yaml"] = _GENERATED + _object(Wanted(tap_claim_bytes=4 << 30))
    kafka = {"patches": [{"target": _target(kind), "patch": _kafka_patch(kind)} for kind in KINDS]}
    written["options/kafka/kustomization.yaml"] = _option(_KAFKA_ABOUT, kafka)
    written["options/kafka/framegate.yaml"] = kafka_configuration(
        ("kafka:9092",), f"{_GENERATED}# Copy it beside your overlay, and write your brokers."
    )
    written["checks.yaml"] = _GENERATED + _CHECKS_ABOUT + "---\n".join(block_text(item, _LAYOUT, 0) + "\n" for item in _checks())
    return {**written, "options/tap-claim/kustomization.yaml": _option(_CLAIM_ABOUT, {"resources": ["tap-claim.yaml"], "patches": claims})}


def _shape(kind: str) -> str:
    """The file of a kind's shape."""
    path = KINDS[kind][1]
    return next(name for other, name in _SHAPES.items() if KINDS[other][1] == path)


def _version(kind: str) -> str:
    group = KINDS[kind][0]
    return f"{group}/v1" if group else "v1"


def _patch(kind: str) -> str:
    """``sidecar.yaml`` within an object of a kind, with its comments."""
    _, _, body = template_text().partition("\nmetadata:\n")
    body, count = _GRACE.subn("", f"metadata:\n{body}")
    assert count == 1, "the grace period is a patch of its own"
    path = KINDS[kind][1]
    head = f"{_GENERATED}# A strategic merge patch. Kustomize takes name and kind from the target.\napiVersion: {_version(kind)}\nkind: {kind}\n"
    if not path:
        return head + body.replace("metadata:\n", "metadata:\n  name: any\n", 1)
    lines = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(path))
    return f"{head}metadata:\n  name: any\n{lines}{textwrap.indent(body, '  ' * len(path))}"


def _component() -> str:
    head = f"""{_GENERATED}# Adds framegate, as a native sidecar, to every Deployment, StatefulSet, DaemonSet, Job, CronJob and Pod that is labelled
# `framegate.io/inject: "true"` (Kubernetes 1.29, Kustomize 5 or newer).
#
# In your overlay:
#   components: [<path or URL of this folder>]
# and provide, in the same namespace:
#   ConfigMap framegate   with framegate.yaml (../../examples/framegate.yaml describes all keys)
#   Secret framegate-tls  with tls.crt, tls.key and ca.crt
# ../example is a complete overlay; ../options has further components; ../checks.yaml refuses pods whose ports clash with framegate's.
#
# A workload with a terminationGracePeriodSeconds of its own is refused ("testing value ... failed"), so that it is never shortened. If it is at
# least {_LEAST_S}, annotate the workload with `{_OWN_GRACE}: own`.
"""
    patches = [{"path": _shape(kind), "target": _target(kind)} for kind in KINDS]
    graces = [{"target": {**_target(kind), "annotationSelector": f"{_OWN_GRACE}!=own"}, "patch": _grace_patch(kind)} for kind in KINDS]
    return head + _kustomization({"patches": patches + graces})


def _grace_patch(kind: str) -> str:
    """Set a grace period where there is none; a JSON patch whose test fails does not apply, and Kustomize reports it."""
    path = "/".join(("", *KINDS[kind][1], "spec", "terminationGracePeriodSeconds"))
    grace = pod_template(Options(), DEFAULT_REQUIREMENTS)["spec"]["terminationGracePeriodSeconds"]
    return "".join(f"- {json.dumps({'op': name, 'path': path, 'value': value})}\n" for name, value in (("test", None), ("add", grace)))


def _checks() -> list[dict[str, Any]]:
    """A policy for pods with framegate, and its binding."""
    checked = f"has(object.metadata.annotations) && '{RECORD}' in object.metadata.annotations"  # by inject or the webhook
    own = f"object.spec.initContainers.filter(c, c.name == '{CONTAINER}')"
    there = f"has(object.spec.initContainers) && {own}.size() > 0"
    others = f"object.spec.containers + object.spec.initContainers.filter(c, c.name != '{CONTAINER}')"
    clash = "variables.others.all(c, !has(c.ports) || c.ports.all(p, p.protocol != 'TCP' || !(p.containerPort in variables.ports)))"
    policy = {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
        "matchConditions": [{"name": "framegate", "expression": f"{there} && !({checked})"}],
        "variables": [{"name": "ports", "expression": f"{own}[0].ports.map(p, p.containerPort)"}, {"name": "others", "expression": others}],
        "validations": [
            {"expression": clash, "message": "a container has a port on which framegate listens, and containers of a pod share their ports"},
            {
                "expression": f"object.spec.terminationGracePeriodSeconds >= {_LEAST_S}",
                "message": f"terminationGracePeriodSeconds is less than {_LEAST_S}, which framegate needs to end in order",
            },
        ],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "framegate"}}
    binding = {"policyName": "framegate", "validationActions": ["Deny"]}
    return [{**head, "kind": f"ValidatingAdmissionPolicy{kind}", "spec": spec} for kind, spec in (("", policy), ("Binding", binding))]


def _target(kind: str) -> dict[str, str]:
    group = {"group": KINDS[kind][0]} if KINDS[kind][0] else {}
    return {**group, "version": "v1", "kind": kind, "labelSelector": "framegate.io/inject=true"}


def _kustomization(content: dict[str, Any]) -> str:
    return block_text({"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", **content}, _LAYOUT, 0) + "\n"


_OPTIONS: Final[dict[str, tuple[str, Wanted]]] = {
    "cert-manager": (
        "The Secret framegate-tls from cert-manager, renewed at run time. Patch dnsNames and issuerRef in your overlay: they are examples.",
        Wanted(issuer=("Issuer", "framegate"), dns_names=("framegate.example.com",)),
    ),
    "network-policy": (
        "Pods with framegate accept connections to its data ports, and within the cluster to its metrics; the application's own ports are closed\n"
        "# to other pods. If your framegate.yaml has other ports, patch them in your overlay.",
        Wanted(network_policy=True),
    ),
    "pod-monitor": ("The Prometheus Operator scrapes framegate's metrics (telemetry.prometheus in framegate.yaml).", Wanted(pod_monitor=True)),
    "disruption-budget": (
        "One pod with framegate at a time is evicted in the namespace: pods of Deployments, StatefulSets and ReplicaSets, which get a label for it.\n"
        "# Pods of other kinds are not included: Kubernetes does not know their number, so one such pod would block all evictions of the budget.\n"
        "# For several applications write one budget each (`framegate inject --disruption-budget` does).",
        Wanted(disruption_budget=True),
    ),
}  # the comment and the object of each option
_CLAIM_ABOUT: Final = (
    "The tap on the PersistentVolumeClaim framegate-tap, which outlives the pod and which Spark's pods mount (deploy/spark). Patch its size, class\n"
    "# and access modes in your overlay; with ReadWriteOnce, Spark's pod must run on framegate's node.\n"
    "# One pod at a time may use the claim: replicas: 1, and for a Deployment strategy: {type: Recreate}.\n"
    "#\n"
    "# framegate writes to the claim through the pod's fsGroup, which replaces yours. An fsGroup permanently changes the modes of files on the\n"
    "# pod's other claims and Secrets; databases and ssh refuse files that a group may read. For such a pod remove it in your overlay, and let\n"
    "# user 10001 write to the claim another way."
)


_CHECKS_ABOUT: Final = (
    "# The API server refuses pods with the component if another container has one of framegate's ports, or the grace period is too short. The\n"
    "# policy is for the whole cluster; an administrator applies it once (Kubernetes 1.30 or newer): kubectl apply -f checks.yaml\n"
)
_KAFKA_ABOUT: Final = (
    "framegate in front of a whole Kafka cluster, beside an application that connects to 127.0.0.1:9092: no Secret is needed, and no\n"
    "# port is open to other pods. Copy framegate.yaml of this folder beside your overlay, write some of your brokers into it, and add there:\n"
    "#   configMapGenerator: [{name: framegate, files: [framegate.yaml]}]"
)


def _object(wanted: Wanted) -> str:
    """One object, for all pods with framegate."""
    any_of_them = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: framegate}\nspec: {template: {spec: {}}}\n"
    (workload,) = workloads(read_manifest(any_of_them))
    label = _BUDGET_LABEL if wanted.disruption_budget else SIDECAR_LABEL
    (item,) = objects_for(workload, Options(tap_claim=_CLAIM), DEFAULT_REQUIREMENTS, wanted, pods={"matchLabels": {label: "true"}})
    del item["metadata"]["labels"]
    if wanted.chooses_pods:
        item["metadata"]["name"] = "framegate"
    return block_text(item, _LAYOUT, 0) + "\n"


def _option(about: str, content: dict[str, Any]) -> str:
    head = f"{_GENERATED}# {about}\n#\n# In your overlay, after ../framegate:\n#   components: [<path or URL of this folder>]\n"
    return head + _kustomization(content)


def _claim_patch(kind: str) -> str:
    """Replace the volume by the claim, which framegate can write through a group; ``null`` removes the previous kind."""
    volume = {"name": "framegate-tap", "emptyDir": None, "persistentVolumeClaim": {"claimName": _CLAIM}}
    group = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
    return _merge_patch(kind, {"spec": {"securityContext": group, "volumes": [volume]}})


def _kafka_patch(kind: str) -> str:
    """Remove what only listeners for other pods need: their port, and the certificates."""
    away = {"$patch": "delete"}
    container = {
        "name": CONTAINER,
        "ports": [{"containerPort": DEFAULT_REQUIREMENTS.data_ports[0], **away}],
        "volumeMounts": [{"mountPath": DEFAULT_REQUIREMENTS.tls_folder, **away}],
    }
    return _merge_patch(kind, {"spec": {"initContainers": [container], "volumes": [{"name": "framegate-tls", **away}]}})


def _budget_patch(kind: str) -> str:
    """Add the label by which the budget selects pods; selectors of workloads are not changed."""
    return _merge_patch(kind, {"metadata": {"labels": {_BUDGET_LABEL: "true"}}})


def _merge_patch(kind: str, content: dict[str, Any]) -> str:
    """A merge patch for the pod template of a kind."""
    for key in reversed(KINDS[kind][1]):
        content = {key: content}
    return block_text({"apiVersion": _version(kind), "kind": kind, "metadata": {"name": "any"}, **content}, _LAYOUT, 0) + "\n"
