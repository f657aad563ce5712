"""Checks whether framegate can be added to a pod: names, ports, volumes and settings, and whether the options are enough for the configuration. All
faults are reported at once.
"""

from collections.abc import Iterator
from typing import Any

from framegate.control.configuration.units import format_size
from framegate.control.kubernetes.manifest import Fault, Node, Workload, node_at, value_at
from framegate.control.kubernetes.objects import Wanted
from framegate.control.kubernetes.pod_requirements import CONFIGURATION_FOLDER, PodRequirements
from framegate.control.kubernetes.sidecar import CONTAINER, USER, Options, grace_least_s

USUAL_FILES = ("tls.crt", "tls.key", "ca.crt")  # the files of a Secret with a certificate

_NO_GROUP = ("emptyDir", "hostPath", "image", "nfs")  # Volumes that an fsGroup does not change, or that begin empty and end with the pod
_FILES = ("configMap", "secret", "projected", "downwardAPI")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DEFAULT_GRACE_S = 30
_MOST_LABEL = 63
_ONE_AT_A_TIME = "a second framegate on the same tap directory does not start"


def faults_of(workload: Workload, template: dict[str, Any], options: Options, needs: PodRequirements) -> list[Fault]:
    """The reasons why framegate cannot be added to a workload without it; empty when it can. ``template``: what would be added."""
    found = [
        *_containers(workload),
        *_volumes(workload, {mount["name"] for mount in template["spec"]["initContainers"][0]["volumeMounts"]}, options.tls_volume),
        *_ports(workload, template["spec"]["initContainers"][0]["ports"], needs),
        *_pod(workload),
        *_grace(workload, options, needs),
        *_waits(workload, needs),
        *(_claim(workload, template, options, needs) if options.tap_claim is not None and needs.tap_folder is not None else ()),
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


def _volumes(workload: Workload, names: set[str], theirs: str | None) -> Iterator[Fault]:
    """``names``: of framegate's volumes, and of the one of the user's that it mounts, ``theirs``."""
    listed, claims = workload.spec.get("volumes"), node_at(workload.root, "spec", "volumeClaimTemplates")
    found = [(volume, volume) for volume in (listed.items if listed is not None else ())]
    found += [(claim, claim.get("metadata") or claim) for claim in (claims.items if claims is not None else ())]
    if theirs in names and theirs not in [_name(named) for _, named in found]:
        yield Fault(workload.spec.line, f"has no volume {theirs}, in which --tls-volume says that the certificates are")
    for volume, named in found:
        if _name(named) in names - {theirs}:
            yield Fault(volume.line, f"has a volume {_name(named)}, a name that framegate uses: rename it")


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
            network.line, "has hostNetwork: framegate's ports would be open on the node, and a second pod could not start there; remove hostNetwork"
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


def unmet(options: Options, needs: PodRequirements, wanted: Wanted) -> list[str]:
    """Options that the configuration does not allow, files of the configuration that are in no volume, and folders that two volumes would have."""
    reasons: list[str] = []
    if wanted.pod_monitor and needs.metrics_port is None:
        reasons.append("--pod-monitor needs telemetry.prometheus")
    if options.tap_claim is not None and needs.tap_folder is None:
        reasons.append("--tap-claim has no effect: the configuration has no tap section")
    elif wanted.tap_claim_bytes and wanted.tap_claim_bytes < needs.tap_bytes:
        least = format_size(-(-needs.tap_bytes // 2**20) * 2**20)
        reasons.append(f"--tap-claim-size is less than {least}, the sum of tap.budget, open segments and the reserve")
    if options.tls_volume is not None and (wanted.issuer is not None or needs.tls_folder is None):
        reasons.append("--tls-volume cannot be used with --certificate, or without a listener or upstream that has a tls section")
    if wanted.issuer is not None and needs.tls_folder is None:
        reasons.append("--certificate has no effect: no listener or upstream has a tls section")
    if wanted.issuer is not None:
        has = f"but cert-manager's Secret has only {', '.join(USUAL_FILES)}; use these names"
        reasons += [f"{key} is {name}, {has}" for name, key in unusual_files(needs)]
    mounted = [folder for _, folder in options.secrets]
    for folder, key in needs.secret_folders:
        if folder not in mounted:
            reasons.append(f"{key} is a file in {folder}, which is in no volume; add --secret NAME={folder}")
    return reasons + _twice(options, needs)


def unusual_files(needs: PodRequirements) -> list[tuple[str, str]]:
    """Files of the certificate folder whose names a TLS Secret does not have, each with its configuration key."""
    return [(name, key) for name, key in needs.tls_files if name not in USUAL_FILES]


def _twice(options: Options, needs: PodRequirements) -> list[str]:
    """Folders in which two volumes would be mounted."""
    places = [
        ("the ConfigMap", CONFIGURATION_FOLDER), ("admin.address", needs.admin_folder), ("certificates and keys", needs.tls_folder),
        ("tap.directory", needs.tap_folder), *((f"--secret {name}", folder) for name, folder in options.secrets),
    ]  # fmt: skip
    first: dict[str, str] = {}
    reasons: list[str] = []
    for what, folder in places:
        if folder in first:
            reasons.append(f"{first[folder]} and {what} are both in {folder}, but each needs a volume; use different folders")
        elif folder is not None:
            first[folder] = what
    return reasons


def grace_is_default(workload: Workload, options: Options, needs: PodRequirements) -> bool:
    """Whether the pod's grace period is too short, but is only the default that the API server writes (``kubectl get -o yaml``)."""
    given = workload.spec.get("terminationGracePeriodSeconds")
    applied = workload.value("metadata", "annotations", _APPLIED)
    wished = isinstance(applied, str) and '"terminationGracePeriodSeconds"' in applied
    from_server = options.admitted or workload.value("metadata", "uid") is not None
    return given is not None and given.value == _DEFAULT_GRACE_S < grace_least_s(needs) and from_server and not wished


def _grace(workload: Workload, options: Options, needs: PodRequirements) -> Iterator[Fault]:
    given = workload.spec.get("terminationGracePeriodSeconds")
    least = grace_least_s(needs)
    if given is not None and isinstance(given.value, int) and given.value < least and not grace_is_default(workload, options, needs):
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


def _claim(workload: Workload, template: dict[str, Any], options: Options, needs: PodRequirements) -> Iterator[Fault]:
    root, own = workload.root, f"or leave out --tap-claim: each pod then has a log of at most {format_size(needs.tap_bytes)}, deleted with the pod"
    if options.claim_each:
        name = str(options.tap_claim)
        if "." in name or len(name) > _MOST_LABEL or any(volume["name"] == name for volume in template["spec"]["volumes"]):
            words = f"must then be the name of a volume: without dots, at most {_MOST_LABEL} characters, none of framegate's other volumes"
            yield Fault(root.line, f"has a claim for each pod, and --tap-claim {words}")
        return
    if workload.kind == "DaemonSet":
        yield Fault(root.line, f"has a pod on each node, and with --tap-claim all would use one claim: {_ONE_AT_A_TIME}; {own[3:]}")
    for path in (("spec", "replicas"), ("spec", "parallelism"), ("spec", "jobTemplate", "spec", "parallelism")):
        count = workload.value(*path)
        if isinstance(count, int) and count > 1:
            words = f"{_ONE_AT_A_TIME}. Use a StatefulSet, whose pods get a claim each, {own}"
            yield Fault(root.line, f"has {path[-1]} {count}, and with --tap-claim all pods would use one claim: {words}")
    if workload.kind == "CronJob" and workload.value("spec", "concurrencyPolicy") not in ("Forbid", "Replace"):
        yield Fault(root.line, f"may run several Jobs at once, but with --tap-claim {_ONE_AT_A_TIME}: use concurrencyPolicy: Forbid")
    if workload.kind == "Deployment" and workload.value("spec", "strategy", "type") != "Recreate":
        yield Fault(
            root.line, f"starts a new pod before it ends the old one, but with --tap-claim {_ONE_AT_A_TIME}: use strategy: {{type: Recreate}}, {own}"
        )
