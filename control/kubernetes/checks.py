"""What keeps framegate out of a pod: names, ports and volumes that are taken, settings that it could not work under. Every fault at once."""

from collections.abc import Iterator
from typing import Any

from control.kubernetes.manifest import Fault, Node
from control.kubernetes.needs import Needs
from control.kubernetes.sidecar import CONTAINER, USER, Options, grace_least_s
from control.kubernetes.workload import Workload

__all__ = ["faults_of", "grace_is_nobodys"]

_NO_GROUP = ("emptyDir", "hostPath", "image", "nfs")
"""Volumes that an fsGroup leaves alone; or that are empty before it, and end with the pod."""
_FILES = ("configMap", "secret", "projected", "downwardAPI")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DEFAULT_GRACE_S = 30
_ONE_AT_A_TIME = "the tap's directory belongs to one framegate, a second one on it does not start"


def faults_of(workload: Workload, template: dict[str, Any], options: Options, needs: Needs) -> list[Fault]:
    """Why framegate cannot be added; empty when it can.

    Args:
        workload: without framegate.
        template: what would be added.
        options: as asked.
        needs: as configured.
    """
    found = [
        *_containers(workload),
        *_volumes(workload, {volume["name"] for volume in template["spec"]["volumes"]}),
        *_ports(workload, template["spec"]["initContainers"][0]["ports"], needs),
        *_pod(workload),
        *_grace(workload, needs),
        *(_claim(workload) if options.tap_claim is not None and needs.tap_folder is not None else ()),
        *(_group(workload) if "securityContext" in template["spec"] else ()),
    ]
    return [Fault(fault.line, f"{workload}: {fault.what}") for fault in found]


def _all_containers(workload: Workload) -> Iterator[Node]:
    for name in ("containers", "initContainers", "ephemeralContainers"):
        listed = workload.spec.get(name)
        yield from (item for item in (listed.items if listed is not None else ()) if item.kind == "mapping")


def _name(node: Node) -> object:
    found = node.get("name")
    return None if found is None else found.value


def _containers(workload: Workload) -> Iterator[Fault]:
    listed = workload.spec.get("containers")
    if listed is None or listed.kind != "sequence" or not listed.items:
        yield Fault(workload.spec.line, "has no containers, beside which framegate could run")
    for container in _all_containers(workload):
        if _name(container) == CONTAINER:
            yield Fault(
                container.line,
                f"has a container {CONTAINER} that inject did not add (the Kustomize component does): take that out first, or give it another name",
            )


def _volumes(workload: Workload, names: set[str]) -> Iterator[Fault]:
    listed = workload.spec.get("volumes")
    for volume in listed.items if listed is not None else ():
        if _name(volume) in names:
            yield Fault(volume.line, f"has a volume {_name(volume)}, a name that framegate needs for its own: give it another")


def _ports(workload: Workload, ports: list[dict[str, Any]], needs: Needs) -> Iterator[Fault]:
    names = {port["name"] for port in ports}
    for container in _all_containers(workload):
        listed = container.get("ports")
        for port in listed.items if listed is not None else ():
            number, protocol = port.get("containerPort"), port.get("protocol")
            if number is not None and number.value in needs.ports and (protocol is None or protocol.value == "TCP"):
                yield Fault(
                    number.line,
                    f"container {_name(container)} has port {number.value}, which framegate listens on: a pod's containers share their ports. Let "
                    "the application listen on another one, at 127.0.0.1, or give framegate another in its configuration",
                )
            elif _name(port) in names:
                yield Fault(port.line, f"container {_name(container)} calls a port {_name(port)}, as framegate does: a Service would find either")


def _pod(workload: Workload) -> Iterator[Fault]:
    spec = workload.spec
    network = spec.get("hostNetwork")
    if network is not None and network.value is True:
        yield Fault(
            network.line,
            "has hostNetwork: framegate's ports would be the node's, open to whoever reaches it, and taken for a second pod there: leave it out",
        )
    system = spec.get("os")
    name = None if system is None else _name(system)
    if system is not None and name not in (None, "linux"):
        yield Fault(system.line, f"is for {name}, and framegate runs on Linux")
    shared = spec.get("shareProcessNamespace")
    if shared is not None and shared.value is True:
        for node in (spec, *_all_containers(workload)):
            context = node.get("securityContext")
            user = None if context is None else context.get("runAsUser")
            if user is not None and user.value == USER:
                yield Fault(
                    user.line,
                    f"runs as user {USER}, who is framegate's own, and shares its processes with it (shareProcessNamespace): it could read "
                    "framegate's keys from memory. Run it as another user",
                )


def grace_is_nobodys(workload: Workload, needs: Needs) -> bool:
    """Whether the pod's grace period is too short, and only what the API server writes into every object that has none (``kubectl get -o yaml``)."""
    given = workload.spec.get("terminationGracePeriodSeconds")
    applied = workload.value("metadata", "annotations", _APPLIED)
    wished = isinstance(applied, str) and '"terminationGracePeriodSeconds"' in applied
    from_server = workload.value("metadata", "uid") is not None
    return given is not None and given.value == _DEFAULT_GRACE_S < grace_least_s(needs) and from_server and not wished


def _grace(workload: Workload, needs: Needs) -> Iterator[Fault]:
    given = workload.spec.get("terminationGracePeriodSeconds")
    least = grace_least_s(needs)
    if given is not None and isinstance(given.value, int) and given.value < least and not grace_is_nobodys(workload, needs):
        yield Fault(
            given.line,
            f"has terminationGracePeriodSeconds {given.value}, and framegate needs {least}: {least - needs.drain_s} for the hook and the tap's last "
            f"blocks, and drain.timeout ({needs.drain_s}). Give it more, leave it out, or shorten drain.timeout",
        )


def _group(workload: Workload) -> Iterator[Fault]:
    """An fsGroup is the whole pod's: the kubelet gives the group rights on files of its other volumes too, and never takes them back."""
    context = workload.spec.get("securityContext")
    group = None if context is None else context.get("fsGroup")
    if group is not None and group.value is not None:
        return  # of the user's own
    volumes, claims = workload.spec.get("volumes"), workload.root.get("spec")
    claims = None if claims is None else claims.get("volumeClaimTemplates")
    found = [(volume, volume) for volume in (volumes.items if volumes is not None else ()) if not _keeps_its_modes(volume)]
    found += [(claim, claim.get("metadata") or claim) for claim in (claims.items if claims is not None else ())]
    for volume, named in found:
        yield Fault(
            volume.line,
            f"has a volume {_name(named)}, whose files' modes the fsGroup for --tap-claim would change for good (databases and ssh refuse keys and "
            f"data that a group may read). Say --no-fs-group and let user {USER} write to the claim another way, or give the pod its own fsGroup",
        )


def _keeps_its_modes(volume: Node) -> bool:
    """Whether an fsGroup changes no file of a volume that lives longer than the pod, and none whose mode somebody chose."""
    if any(volume.get(kind) is not None for kind in _NO_GROUP):
        return True
    return any((source := volume.get(kind)) is not None and _readable_by_groups(source) for kind in _FILES)


def _readable_by_groups(source: Node) -> bool:
    """Whether all modes that are written in a volume of files already are what an fsGroup makes of them."""
    for name, value in source.entries:
        if name.text in ("defaultMode", "mode") and not (isinstance(value.value, int) and value.value & 0o440 == 0o440):
            return False
        if not _readable_by_groups(value):
            return False
    return all(_readable_by_groups(item) for item in source.items)


def _claim(workload: Workload) -> Iterator[Fault]:
    """One claim, one framegate."""
    root = workload.root
    if workload.kind == "DaemonSet":
        yield Fault(root.line, f"has a pod on each node, and --tap-claim gives all of them one claim: {_ONE_AT_A_TIME}")
    for path in (("spec", "replicas"), ("spec", "parallelism"), ("spec", "jobTemplate", "spec", "parallelism")):
        count = workload.value(*path)
        if isinstance(count, int) and count > 1:
            yield Fault(root.line, f"has {path[-1]} {count}, and --tap-claim gives all of them one claim: {_ONE_AT_A_TIME}")
    if workload.kind == "CronJob" and workload.value("spec", "concurrencyPolicy") not in ("Forbid", "Replace"):
        yield Fault(root.line, f"may have several Jobs at once, and with --tap-claim {_ONE_AT_A_TIME}: write concurrencyPolicy: Forbid")
    if workload.kind == "Deployment" and workload.value("spec", "strategy", "type") != "Recreate":
        yield Fault(
            root.line,
            f"replaces a pod by starting the next one first, and with --tap-claim {_ONE_AT_A_TIME}: write strategy: {{type: Recreate}}",
        )
