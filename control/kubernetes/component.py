"""The Kustomize components of ``deploy/kustomize``: the same sidecar as ``inject`` adds, as patches that Kustomize merges.

``python -m control.kubernetes`` writes them; a test says when they are not as written here.
"""

import textwrap
from typing import Any, Final

from control.kubernetes.edit import Layout, block_text
from control.kubernetes.manifest import read_manifest
from control.kubernetes.needs import DEFAULT_NEEDS
from control.kubernetes.objects import SCALED, Wanted, objects_for
from control.kubernetes.sidecar import SIDECAR_LABEL, USER, Options, template_text
from control.kubernetes.workload import KINDS, workloads

__all__ = ["files"]

_SHAPES: Final = {"Deployment": "sidecar.yaml", "CronJob": "sidecar-cronjob.yaml", "Pod": "sidecar-pod.yaml"}
"""One patch of each shape: Kustomize takes name and kind of what it is merged into."""
_LAYOUT: Final = Layout(2, 2, "\n")
_GENERATED: Final = "# Written by `python -m control.kubernetes`, from control/kubernetes/sidecar.yaml.\n"
_CLAIM: Final = "framegate-tap"
_BUDGET_LABEL: Final = "framegate.io/disruption-budget"


def files() -> dict[str, str]:
    """Every file that is written, by its path below ``deploy/kustomize``."""
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
    body = f"metadata:\n{body}"
    path = KINDS[kind][1]
    head = f"{_GENERATED}# A strategic merge patch. Name and kind are those of what it is merged into.\napiVersion: {_version(kind)}\nkind: {kind}\n"
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
#   ConfigMap framegate   with framegate.yaml (../../examples/framegate.yaml is the manual of its keys)
#   Secret framegate-tls  with tls.crt, tls.key and ca.crt
# ../example shows all of it; ../options has what may be added behind it.
#
# A terminationGracePeriodSeconds of your own is replaced; `framegate inject` keeps it, and finds what does not fit.
"""
    patches = [{"path": _shape(kind), "target": _target(kind)} for kind in KINDS]
    return head + _kustomization({"patches": patches})


def _target(kind: str) -> dict[str, str]:
    group = {"group": KINDS[kind][0]} if KINDS[kind][0] else {}
    return {**group, "version": "v1", "kind": kind, "labelSelector": "framegate.io/inject=true"}


def _kustomization(content: dict[str, Any]) -> str:
    return block_text({"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", **content}, _LAYOUT, 0) + "\n"


_OPTIONS: Final[dict[str, tuple[str, Wanted]]] = {
    "cert-manager": (
        "The Secret framegate-tls from cert-manager, renewed while framegate runs. Patch dnsNames and issuerRef in your overlay: they are examples.",
        Wanted(issuer=("Issuer", "framegate"), dns_names=("framegate.example.com",)),
    ),
    "network-policy": (
        "Pods with framegate are reached at its data ports only, and at its metrics from within the cluster; the application's own ports are closed\n"
        "# to other pods. Patch the ports in your overlay when your framegate.yaml has others.",
        Wanted(network_policy=True),
    ),
    "pod-monitor": ("Prometheus' operator scrapes framegate's metrics (telemetry.prometheus in framegate.yaml).", Wanted(pod_monitor=True)),
    "disruption-budget": (
        "Of the pods with framegate in the namespace, one at a time is evicted: of those of Deployments, StatefulSets and ReplicaSets, which get a\n"
        "# label for it. Of other kinds Kubernetes does not know how many there should be: one such pod would keep all of a budget from eviction.\n"
        "# With more than one application there, write one budget for each instead (`framegate inject --disruption-budget` does).",
        Wanted(disruption_budget=True),
    ),
}
"""What is said of each, and what it is."""
_CLAIM_ABOUT: Final = (
    "The tap on the PersistentVolumeClaim framegate-tap, which outlives the pod and which Spark's pods mount (deploy/spark). Patch its size, class\n"
    "# and access modes in your overlay: ReadWriteOnce has Spark's pod on framegate's node.\n"
    "# One pod at a time may have it: replicas: 1, and of a Deployment strategy: {type: Recreate}.\n"
    "#\n"
    "# framegate writes there through the pod's fsGroup, in place of one of your own. It changes the modes of files on the pod's other claims,\n"
    "# and of Secrets, for good: databases and ssh refuse what a group may read. For such a pod take it out in your overlay, and let user 10001\n"
    "# write to the claim another way."
)


def _object(wanted: Wanted) -> str:
    """One object, for all pods with framegate."""
    any_of_them = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: framegate}\nspec: {template: {spec: {}}}\n"
    (workload,) = workloads(read_manifest(any_of_them))
    label = _BUDGET_LABEL if wanted.disruption_budget else SIDECAR_LABEL
    (item,) = objects_for(workload, Options(tap_claim=_CLAIM), DEFAULT_NEEDS, wanted, pods={"matchLabels": {label: "true"}})
    del item["metadata"]["labels"]
    if wanted.chooses_pods:
        item["metadata"]["name"] = "framegate"
    return block_text(item, _LAYOUT, 0) + "\n"


def _option(about: str, content: dict[str, Any]) -> str:
    head = f"{_GENERATED}# {about}\n#\n# In your overlay, behind ../framegate:\n#   components: [<path or URL of this folder>]\n"
    return head + _kustomization(content)


def _claim_patch(kind: str) -> str:
    """The volume is another, and framegate's through a group; ``null`` takes out what it was."""
    volume = {"name": "framegate-tap", "emptyDir": None, "persistentVolumeClaim": {"claimName": _CLAIM}}
    group = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
    return _merge_patch(kind, {"spec": {"securityContext": group, "volumes": [volume]}})


def _budget_patch(kind: str) -> str:
    """A label by which the budget finds the pods; selectors of workloads stay."""
    return _merge_patch(kind, {"metadata": {"labels": {_BUDGET_LABEL: "true"}}})


def _merge_patch(kind: str, content: dict[str, Any]) -> str:
    """What a pod template of a kind gains."""
    for key in reversed(KINDS[kind][1]):
        content = {key: content}
    return block_text({"apiVersion": _version(kind), "kind": kind, "metadata": {"name": "any"}, **content}, _LAYOUT, 0) + "\n"
