"""The objects beside a pod: what it reads (ConfigMap, Certificate, PersistentVolumeClaim) and what watches over it (NetworkPolicy, PodMonitor,
PodDisruptionBudget). As plain data; each has the label by which ``inject`` knows it again.
"""

import dataclasses
from typing import Any, Final

from control.kubernetes.needs import Needs
from control.kubernetes.sidecar import FILE_NAME, SIDECAR_LABEL, Options, quantity
from control.kubernetes.workload import Workload

__all__ = ["MANAGED_BY", "MANAGER", "Wanted", "key_of", "objects_for"]

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "framegate-inject"
Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which objects are asked for.

    Attributes:
        issuer: cert-manager's, of a Certificate: its kind and name.
        dns_names: of the Certificate; empty: the workload's name, as a Service has it.
        network_policy, pod_monitor, disruption_budget: one for each workload.
        tap_claim_bytes: of the claim; 0: it is there already.
    """

    issuer: tuple[str, str] | None = None
    dns_names: tuple[str, ...] = ()
    network_policy: bool = False
    pod_monitor: bool = False
    disruption_budget: bool = False
    tap_claim_bytes: int = 0


def key_of(item: Object) -> tuple[str, str | None, str]:
    """What tells an object from others: kind, namespace, name."""
    return item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]


def objects_for(workload: Workload, options: Options, needs: Needs, wanted: Wanted) -> list[Object]:
    """All that belong to a workload; those that several share come out the same for each."""
    found: list[Object] = []
    if needs.text is not None:
        found.append(_object("v1", "ConfigMap", options.config_map, workload, data={FILE_NAME: needs.text}))
    if wanted.issuer is not None and needs.tls_folder is not None:
        found.append(_certificate(workload, options, wanted))
    if wanted.tap_claim_bytes and options.tap_claim is not None:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": quantity(wanted.tap_claim_bytes)}}}
        found.append(_object("v1", "PersistentVolumeClaim", options.tap_claim, workload, spec=claim))
    name, selector = f"{workload.name}-framegate", _selector(workload)
    if wanted.network_policy:
        found.append(_object("networking.k8s.io/v1", "NetworkPolicy", name, workload, spec=_policy(selector, needs)))
    if wanted.pod_monitor:
        endpoint = {"port": "fg-metrics", "path": "/metrics"}
        found.append(
            _object("monitoring.coreos.com/v1", "PodMonitor", name, workload, spec={"selector": selector, "podMetricsEndpoints": [endpoint]})
        )
    if wanted.disruption_budget:
        found.append(_object("policy/v1", "PodDisruptionBudget", name, workload, spec={"maxUnavailable": 1, "selector": selector}))
    return found


def _object(version: str, kind: str, name: str, workload: Workload, **content: Any) -> Object:
    namespace = {} if workload.namespace is None else {"namespace": workload.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **namespace, "labels": {MANAGED_BY: MANAGER}}, **content}


def _selector(workload: Workload) -> dict[str, Any]:
    """Its pods, as the workload itself chooses them."""
    chosen = workload.value("spec", "selector") if workload.kind not in ("Job", "CronJob", "Pod") else None
    selector = chosen if isinstance(chosen, dict) and chosen else {"matchLabels": workload.value(*workload.path, "metadata", "labels")}
    labels = selector.get("matchLabels")
    named = {name: value for name, value in labels.items() if isinstance(value, str)} if isinstance(labels, dict) else {}
    return {**selector, "matchLabels": {**named, SIDECAR_LABEL: "true"}}


def _certificate(workload: Workload, options: Options, wanted: Wanted) -> Object:
    assert wanted.issuer is not None, "the caller asked"
    kind, issuer = wanted.issuer
    domain = [] if workload.namespace is None else [f"{workload.name}.{workload.namespace}.svc"]
    spec = {
        "secretName": options.tls_secret,
        "dnsNames": list(wanted.dns_names) or [workload.name, *domain],
        "usages": ["server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "issuerRef": {"group": "cert-manager.io", "kind": kind, "name": issuer},
    }
    return _object("cert-manager.io/v1", "Certificate", options.tls_secret, workload, spec=spec)


def _policy(selector: dict[str, Any], needs: Needs) -> dict[str, Any]:
    """Framegate's data ports from everywhere, its metrics from within the cluster, nothing else of the pod. The kubelet's probes pass any policy."""
    ingress: list[dict[str, Any]] = [{"ports": [{"protocol": "TCP", "port": port} for port in needs.data_ports]}] if needs.data_ports else []
    if needs.metrics_port is not None:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": needs.metrics_port}]})
    return {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
