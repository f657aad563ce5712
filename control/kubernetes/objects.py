"""The objects beside a pod: those that it reads (ConfigMap, Certificate, PersistentVolumeClaim) and those that select it (NetworkPolicy, PodMonitor,
PodDisruptionBudget). They are plain data with a label by which ``inject`` recognizes them.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final

from framegate.control.kubernetes.manifest import Fault, ManifestError, Node, Workload, value_at
from framegate.control.kubernetes.pod_requirements import PodRequirements
from framegate.control.kubernetes.sidecar import FILE_NAME, SIDECAR_LABEL, Options, quantity
from framegate.proxy.config.model import MIB

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "framegate-inject"
SCALED: Final = ("Deployment", "StatefulSet", "ReplicaSet")
"""Kinds with a number of pods (the scale subresource). For pods of other kinds a PodDisruptionBudget permits no eviction."""
JOB_NAME: Final = "batch.kubernetes.io/job-name"
_DEPTH: Final = 6
_MAX_NAME: Final = 242  # of 253 characters, without a hyphen and the hash
_NO_NAME: Final = re.compile(r"[^a-z0-9.-]")
Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which objects are asked for."""

    issuer: tuple[str, str] | None = None  # cert-manager's, of a Certificate: its kind and name
    dns_names: tuple[str, ...] = ()  # of the Certificate; empty: the workloads' names, as Services have them
    # network_policy, pod_monitor: one for each workload
    network_policy: bool = False
    pod_monitor: bool = False
    disruption_budget: bool = False  # one for each workload of ``SCALED``
    tap_claim_bytes: int = 0  # of the claim; 0: it exists already, or for a StatefulSet what the tap may need

    @property
    def chooses_pods(self) -> bool:
        """Whether one of the objects selects the workload's pods."""
        return self.network_policy or self.pod_monitor or self.disruption_budget


def options_of(workload: Workload, options: Options, needs: PodRequirements, wanted: Wanted) -> Options:
    """The options with what depends on the workload: whether each pod has a claim, and the names of the objects that are written for it alone: the
    ConfigMap, whose name ends with a hash of workload and configuration, and the Secret of its Certificate. Nothing else writes this ConfigMap, and
    its contents never change. An earlier revision of the workload names an earlier ConfigMap.
    """
    each = workload.kind == "StatefulSet" and options.tap_claim is not None and needs.tap_folder is not None
    own = _NO_NAME.sub("-", f"{workload.name}-{workload.kind.lower()}-{options.tls_secret}")[-_MAX_NAME:].lstrip("-.")
    secret = options.tls_secret if wanted.issuer is None else own
    options = dataclasses.replace(options, claim_each=each, tls_secret=secret)
    if needs.text is None or options.config_map is None:
        return options
    digest = hashlib.sha256("\0".join((workload.kind, workload.name, needs.text)).encode()).hexdigest()[:10]
    head = _NO_NAME.sub("-", f"{options.config_map}-{workload.name}")[:_MAX_NAME].rstrip("-.")
    return dataclasses.replace(options, config_map=f"{head}-{digest}")


def key_of(item: Object) -> tuple[str, str | None, str]:
    """The identity of an object: kind, namespace, name."""
    return item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]


def objects_for(workload: Workload, options: Options, needs: PodRequirements, wanted: Wanted, pods: dict[str, Any] | None = None) -> list[Object]:
    """All objects of a workload with framegate. ``workload``, ``options``, ``needs``, ``wanted``: of the objects; ``options`` as ``options_of``
    returns them. ``pods``: a selector; None: of the workload's own pods. Raises ManifestError: as of ``pods_of``.
    """
    found: list[Object] = []
    if needs.text is not None and options.config_map is not None:
        config_map = _object("v1", "ConfigMap", options.config_map, workload, data={FILE_NAME: needs.text}, immutable=True)
        uid = workload.value("metadata", "uid")
        if isinstance(uid, str):  # the object is in the cluster; its end is the ConfigMap's, too
            version = workload.value("apiVersion")
            config_map["metadata"]["ownerReferences"] = [{"apiVersion": version, "kind": workload.kind, "name": workload.name, "uid": uid}]
        found.append(config_map)
    if wanted.issuer is not None and needs.tls_folder is not None:
        found.append(_certificate(workload, options, wanted))
    if wanted.tap_claim_bytes and options.tap_claim is not None and not options.claim_each:
        found.append(_object("v1", "PersistentVolumeClaim", options.tap_claim, workload, spec=_claim(wanted.tap_claim_bytes)))
    if not wanted.chooses_pods:
        return found
    selector = pods or pods_of(workload)
    name = f"{workload.name}-{workload.kind.lower()}-framegate"  # a Job may have the name of a Deployment
    if wanted.network_policy:
        found.append(_object("networking.k8s.io/v1", "NetworkPolicy", name, workload, spec=_policy(workload, selector, needs)))
    if wanted.pod_monitor:
        endpoint = {"port": "fg-metrics", "path": "/metrics"}
        found.append(
            _object("monitoring.coreos.com/v1", "PodMonitor", name, workload, spec={"selector": selector, "podMetricsEndpoints": [endpoint]})
        )
    if wanted.disruption_budget and workload.kind in SCALED:
        found.append(_object("policy/v1", "PodDisruptionBudget", name, workload, spec={"maxUnavailable": 1, "selector": selector}))
    return found


def claims_of(options: Options, needs: PodRequirements, wanted: Wanted) -> list[Object]:
    """The ``volumeClaimTemplates`` of a workload; ``options`` as ``options_of`` returns them."""
    size = wanted.tap_claim_bytes or -(-needs.tap_bytes // MIB) * MIB
    return [{"metadata": {"name": options.tap_claim}, "spec": _claim(size)}] if options.claim_each else []


def _claim(size: int) -> Object:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": quantity(size)}}}


def _object(version: str, kind: str, name: str, workload: Workload, **content: Any) -> Object:
    namespace = {} if workload.namespace is None else {"namespace": workload.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **namespace, "labels": {MANAGED_BY: MANAGER}}, **content}


def pods_of(workload: Workload) -> dict[str, Any]:
    """A selector of its pods with framegate, and of no others. Raises ManifestError: they have no labels of their own, or labels that cannot
    be read.
    """
    job = workload.kind in ("Job", "CronJob", "Pod")
    chosen = None if job else _plain(workload, "spec", "selector")
    selector = chosen if isinstance(chosen, dict) and chosen else {"matchLabels": _plain(workload, *workload.path, "metadata", "labels") or {}}
    named = selector.get("matchLabels") or {}
    wrong = [name for name, value in named.items() if not isinstance(value, str)] if isinstance(named, dict) else ["matchLabels"]
    if wrong:
        raise _unreadable(workload, workload.root, f"{wrong[0]} is no text")
    named = {name: value for name, value in named.items() if name != SIDECAR_LABEL}
    if not named and not selector.get("matchExpressions"):
        name = workload.value("metadata", "name")
        if workload.kind != "Job" or not isinstance(name, str):
            words = "its pods have no labels of their own, by which a NetworkPolicy, PodMonitor or PodDisruptionBudget would find them and no others"
            raise ManifestError([Fault(workload.root.line, f"{words}: give them one, as app: {workload.name}")])
        named = {JOB_NAME: name}  # Kubernetes gives this label to the pods
    return {**selector, "matchLabels": {**named, SIDECAR_LABEL: "true"}}


def _unreadable(workload: Workload, node: Node, why: str) -> ManifestError:
    words = f"the labels of its pods cannot be read here ({why}), and a NetworkPolicy, PodMonitor or PodDisruptionBudget goes by them"
    return ManifestError([Fault(node.line or workload.root.line, f"{words}: write them out")])


def _plain(workload: Workload, *path: str) -> Any:
    """A value of a workload with its aliases resolved; None if there is none."""
    node: Node = workload.root
    for key in path:
        _no_merge(workload, node)
        below = node.get(key)
        if below is None:
            return None
        node = below.followed
    return _data(workload, node, _DEPTH)


def _data(workload: Workload, node: Node, depth: int) -> Any:
    found = node.followed
    if found.kind == "alias" or depth == 0:
        raise _unreadable(workload, node, "an alias within itself" if depth else "nested too deep")
    _no_merge(workload, node)
    if found.kind == "mapping":
        return {key.text: _data(workload, value, depth - 1) for key, value in found.entries}
    return [_data(workload, item, depth - 1) for item in found.items] if found.kind == "sequence" else found.value


def _no_merge(workload: Workload, node: Node) -> None:
    if node.followed.key("<<") is not None:
        raise _unreadable(workload, node, "<< may bring others")


def _certificate(workload: Workload, options: Options, wanted: Wanted) -> Object:
    assert wanted.issuer is not None, "the caller asked"
    kind, issuer = wanted.issuer
    names = [workload.name] if workload.namespace is None else [workload.name, f"{workload.name}.{workload.namespace}.svc"]
    spec = {
        "secretName": options.tls_secret,
        "dnsNames": list(wanted.dns_names) or names,
        "usages": ["server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "issuerRef": {"group": "cert-manager.io", "kind": kind, "name": issuer},
    }
    return _object("cert-manager.io/v1", "Certificate", options.tls_secret, workload, spec=spec)


def _policy(workload: Workload, selector: dict[str, Any], needs: PodRequirements) -> dict[str, Any]:
    """Permit framegate's data ports and the application's other ports from everywhere, framegate's metrics from within the cluster, and no other
    port: not those to which framegate connects. The kubelet's probes pass any policy.
    """
    ports: list[dict[str, Any]] = [{"protocol": "TCP", "port": port} for port in needs.data_ports]
    ports += [{"protocol": "TCP", "port": first, "endPort": last} for first, last in needs.data_ranges]
    ports += [{"protocol": protocol, "port": port} for protocol, port in _ports(workload) if protocol != "TCP" or port not in needs.upstream_ports]
    ingress: list[dict[str, Any]] = [{"ports": ports}] if ports else []
    if needs.metrics_port is not None:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": needs.metrics_port}]})
    return {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}


def _ports(workload: Workload) -> Iterator[tuple[str, int]]:
    """Protocol and number of the ports that the pod's containers list, each once."""
    known: set[tuple[str, int]] = set()
    for container in (item for name in ("containers", "initContainers") if (listed := workload.spec.get(name)) is not None for item in listed.items):
        listed = container.get("ports")
        for port in listed.items if listed is not None else ():
            number, protocol = value_at(port, ("containerPort",)), value_at(port, ("protocol",)) or "TCP"
            if isinstance(number, int) and isinstance(protocol, str) and (protocol, number) not in known:
                known.add((protocol, number))
                yield protocol, number
