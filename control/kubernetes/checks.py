"""Checks whether framegate can be added to a pod: names, ports, volumes and settings. All faults are reported at once."""

from collections.abc import Iterator
from typing import Any

from framegate.control.kubernetes.manifest import Fault, Node, Workload, node_at, value_at
from framegate.control.kubernetes.pod_requirements import PodRequirements
from framegate.control.kubernetes.sidecar import CONTAINER, USER, Options, grace_least_s

__all__ = ["containers_of", "faults_of", "grace_is_default", "hook_of"]

_NO_GROUP = ("emptyDir", "hostPath", "image", "nfs")
"""Volumes that an fsGroup does not change, or that begin empty and end with the pod."""
_FILES = ("configMap", "secret", "projected", "downwardAPI")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DEFAULT_GRACE_S = 30
_ONE_AT_A_TIME = "a second framegate on the same tap directory does not start"


def faults_of(workload: Workload, template: dict[str, Any], options: Options, needs: PodRequirements) -> list[Fault]:
    """The reasons why framegate cannot be added to a workload without it; empty when it can. ``template``: what would be added."""
    found = [
        *_containers(workload),
        *_volumes(workload, {volume["name"] for volume in template["spec"]["volumes"]}),
        *_ports(workload, template["spec"]["initContainers"][0]["ports"], needs),
        *_pod(workload),
        *_grace(workload, needs),
        *_waits(workload, needs),
        *(_claim(workload) if options.tap_claim is not None and needs.tap_folder is not None else ()),
        *(_group(workload) if "securityContext" in template["spec"] else ()),
    ]
    return [Fault(fault.line, f"{workload}: {fault.what}") for fault in found]


def _all_containers(workload: Workload) -> Iterator[Node]:
    for name in ("containers", "initContainers", "ephemeralContainers"):
        listed = workload.spec.get(name)
        yield from (item for item in (listed.items if listed is not None else ()) if item.kind == "mapping")


def _name(node: Node) -> object:
    return value_at(node, ("name",))


def _containers(workload: Workload) -> Iterator[Fault]:
    listed = workload.spec.get("containers")
    if listed is None or listed.kind != "sequence" or not listed.items:
        yield Fault(workload.spec.line, "has no containers")
    for container in _all_containers(workload):
        if _name(container) == CONTAINER:
            yield Fault(
                container.line,
                f"already has a container {CONTAINER} that inject did not add (perhaps the Kustomize component did): remove or rename it",
            )


def _volumes(workload: Workload, names: set[str]) -> Iterator[Fault]:
    listed = workload.spec.get("volumes")
    for volume in listed.items if listed is not None else ():
        if _name(volume) in names:
            yield Fault(volume.line, f"has a volume {_name(volume)}, a name that framegate uses: rename it")


def _ports(workload: Workload, ports: list[dict[str, Any]], needs: PodRequirements) -> Iterator[Fault]:
    names = {port["name"] for port in ports if "name" in port}
    for container in _all_containers(workload):
        listed = container.get("ports")
        for port in listed.items if listed is not None else ():
            number, protocol = port.get("containerPort"), port.get("protocol")
            if number is not None and number.value in needs.ports and (protocol is None or protocol.value == "TCP"):
                yield Fault(
                    number.line,
                    f"container {_name(container)} has port {number.value}, on which framegate listens, and containers of a pod share their ports. "
                    "Change the application's port (on 127.0.0.1), or framegate's in its configuration",
                )
            elif _name(port) in names:
                yield Fault(
                    port.line,
                    f"container {_name(container)} has a port named {_name(port)}, as framegate has: rename it, or a Service selects either",
                )


def _pod(workload: Workload) -> Iterator[Fault]:
    spec = workload.spec
    network, system = spec.get("hostNetwork"), spec.get("os")
    if network is not None and network.value is True:
        yield Fault(
            network.line,
            "has hostNetwork: framegate's ports would be open on the node, and a second pod could not start there; remove hostNetwork",
        )
    if system is not None and (name := _name(system)) not in (None, "linux"):
        yield Fault(system.line, f"is for {name}, but framegate runs on Linux only")
    if value_at(spec, ("shareProcessNamespace",)) is True:
        for node in (spec, *_all_containers(workload)):
            user = node_at(node, "securityContext", "runAsUser")
            if user is not None and user.value == USER:
                yield Fault(
                    user.line,
                    f"runs as user {USER}, which framegate uses, with shareProcessNamespace: it could read framegate's keys from memory. "
                    "Use another user",
                )


def grace_is_default(workload: Workload, needs: PodRequirements) -> bool:
    """Whether the pod's grace period is too short, but is only the default that the API server writes (``kubectl get -o yaml``)."""
    given = workload.spec.get("terminationGracePeriodSeconds")
    applied = workload.value("metadata", "annotations", _APPLIED)
    wished = isinstance(applied, str) and '"terminationGracePeriodSeconds"' in applied
    from_server = workload.value("metadata", "uid") is not None
    return given is not None and given.value == _DEFAULT_GRACE_S < grace_least_s(needs) and from_server and not wished


def _grace(workload: Workload, needs: PodRequirements) -> Iterator[Fault]:
    given = workload.spec.get("terminationGracePeriodSeconds")
    least = grace_least_s(needs)
    if given is not None and isinstance(given.value, int) and given.value < least and not grace_is_default(workload, needs):
        yield Fault(
            given.line,
            f"has terminationGracePeriodSeconds {given.value}, but framegate needs {least}: 12 for the preStop hook and the tap's last blocks, plus "
            f"drain.timeout ({needs.drain_s}){f' and drain.delay ({needs.delay_s})' if needs.wait_s else ''}. Increase it, "
            "remove it, or shorten these",
        )


def containers_of(workload: Workload) -> list[Node]:
    """The application's containers, which end at the pod's deletion."""
    listed = workload.spec.get("containers")
    return [item for item in (listed.items if listed is not None else ()) if item.kind == "mapping"]


def hook_of(container: Node) -> Node | None:
    """The preStop hook of a container."""
    found = node_at(container, "lifecycle", "preStop")
    return None if found is None or found.empty else found


def _waits(workload: Workload, needs: PodRequirements) -> Iterator[Fault]:
    for container in containers_of(workload):
        hook = hook_of(container)
        seconds = None if hook is None else value_at(hook, ("sleep", "seconds"))
        if hook is not None and isinstance(seconds, int) and seconds < needs.wait_s:
            yield Fault(
                hook.line,
                f"has a preStop hook of container {_name(container)} that sleeps {seconds} s, but connections of other pods end within "
                f"{needs.wait_s} s (drain.delay plus drain.timeout), and the application must serve until then. Increase it, "
                "remove it, or shorten these",
            )


def _group(workload: Workload) -> Iterator[Fault]:
    """An fsGroup applies to the whole pod: the kubelet also gives the group rights on files of other volumes, permanently."""
    if value_at(workload.spec, ("securityContext", "fsGroup")) is not None:
        return  # set by the user
    volumes, claims = workload.spec.get("volumes"), node_at(workload.root, "spec", "volumeClaimTemplates")
    found = [(volume, volume) for volume in (volumes.items if volumes is not None else ()) if not _keeps_its_modes(volume)]
    found += [(claim, claim.get("metadata") or claim) for claim in (claims.items if claims is not None else ())]
    for volume, named in found:
        yield Fault(
            volume.line,
            f"has a volume {_name(named)}; the fsGroup for --tap-claim would permanently change the modes of its files (databases and ssh refuse "
            f"files that a group may read). Use --no-fs-group and let user {USER} write to the claim another way, or set an fsGroup yourself",
        )


def _keeps_its_modes(volume: Node) -> bool:
    """Whether an fsGroup changes no lasting file of a volume, and no mode that the user has set."""
    if any(volume.get(kind) is not None for kind in _NO_GROUP):
        return True
    return any((source := volume.get(kind)) is not None and _readable_by_groups(source) for kind in _FILES)


def _readable_by_groups(source: Node) -> bool:
    for name, value in source.entries:
        if name.text in ("defaultMode", "mode") and not (isinstance(value.value, int) and value.value & 0o440 == 0o440):
            return False
        if not _readable_by_groups(value):
            return False
    return all(_readable_by_groups(item) for item in source.items)


def _claim(workload: Workload) -> Iterator[Fault]:
    root = workload.root
    if workload.kind == "DaemonSet":
        yield Fault(root.line, f"has a pod on each node, and with --tap-claim all would use one claim: {_ONE_AT_A_TIME}")
    for path in (("spec", "replicas"), ("spec", "parallelism"), ("spec", "jobTemplate", "spec", "parallelism")):
        count = workload.value(*path)
        if isinstance(count, int) and count > 1:
            yield Fault(root.line, f"has {path[-1]} {count}, and with --tap-claim all pods would use one claim: {_ONE_AT_A_TIME}")
    if workload.kind == "CronJob" and workload.value("spec", "concurrencyPolicy") not in ("Forbid", "Replace"):
        yield Fault(root.line, f"may run several Jobs at once, but with --tap-claim {_ONE_AT_A_TIME}: use concurrencyPolicy: Forbid")
    if workload.kind == "Deployment" and workload.value("spec", "strategy", "type") != "Recreate":
        yield Fault(
            root.line,
            f"starts a new pod before it ends the old one, but with --tap-claim {_ONE_AT_A_TIME}: use strategy: {{type: Recreate}}",
        )
