"""What a pod gets: ``sidecar.yaml``, adapted to a configuration and to the user's options."""

import copy
import dataclasses
import importlib.resources
from typing import Any, Final, Literal

from ruamel.yaml import YAML

from framegate.control.configuration.units import format_size
from framegate.control.kubernetes.pod_requirements import CONFIGURATION_FOLDER, PodRequirements
from framegate.control.version import installed_version
from framegate.proxy.config.model import MIB

CONTAINER: Final = "framegate"
FILE_NAME: Final = "framegate.yaml"
SIDECAR_LABEL: Final = "framegate.io/sidecar"
CONFIGURATION: Final = "framegate.io/configuration"  # an annotation of the pod: its framegate.yaml, if that is in no ConfigMap
USER: Final = 10001
PRE_STOP_S: Final = 2
"""For the hook, which starts a process that signals framegate, and for the kubelet, which may start the hooks of a pod one after the other."""
TAP_S: Final = 10  # for the tap's last blocks, after the connections have ended
SHIP_S: Final = 6  # for the shipper, which sends the tap's last segments after that
APPLICATION_S: Final = 18  # for the application's end, between hook and drain, if the user has set no grace period
START_CPU_MS: Final = 1500  # Processor time until framegate serves, roughly
_START_LEAST_S: Final = 30
_FIRST_PORT: Final = "framegate-data"
_REQUESTED_CPU_M: Final = 200
_REQUESTED_MEMORY: Final = 192 * MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The user's choices."""

    image: str = ""  # of framegate; empty: that of this version
    config_map: str | None = "framegate"  # the ConfigMap that holds framegate.yaml; None: the pod's annotation ``CONFIGURATION`` holds its text
    tls_secret: str = "framegate-tls"  # the Secret that holds tls.crt, tls.key and ca.crt
    # a volume of the pod that holds certificates instead of that Secret: projected, CSI, or filled by another container
    tls_volume: str | None = None
    secrets: tuple[tuple[str, str], ...] = ()  # further Secrets and the folders that they are mounted at
    env_secret: str | None = None  # the Secret whose keys are variables of the container's environment, as of credentials of an object store
    tap_claim: str | None = None  # the PersistentVolumeClaim of the tap; None: it ends with the pod
    claim_each: bool = False  # the workload makes such a claim for each pod, by ``volumeClaimTemplates``
    fs_group: bool = True  # whether a pod with that claim gets an fsGroup, through which framegate may write there; not with ``any_user``
    any_user: bool = False  # the cluster chooses user and group, of a range of the namespace
    probes: Literal["grpc", "http"] = "http"  # the protocol of the kubelet's probes
    memory: int = 512 * MIB  # the container's limit, in bytes
    cpu_m: int = 1000  # the container's limit, in thousandths of a CPU
    admitted: bool = False  # the API server is about to create the pod, and has set what the user has not


def template_text() -> str:
    """The text of ``sidecar.yaml``."""
    return importlib.resources.files("framegate.control.kubernetes").joinpath("sidecar.yaml").read_text(encoding="utf-8")


def grace_least_s(needs: PodRequirements) -> int:
    """The shortest ``terminationGracePeriodSeconds`` with which framegate ends in order."""
    return PRE_STOP_S + max(needs.wait_s, needs.drain_s) + TAP_S + (SHIP_S if needs.ships else 0)


def application_wait(needs: PodRequirements) -> dict[str, Any]:
    """What a container of the application gains: Kubernetes ends it when the connections of other pods have ended; empty: there are none."""
    return {"lifecycle": {"preStop": {"sleep": {"seconds": needs.wait_s}}}} if needs.wait_s else {}


def quantity(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    return format_size(size).removesuffix("B")


def pod_template(options: Options, needs: PodRequirements) -> dict[str, Any]:
    """``metadata`` and ``spec`` of what is merged into a pod template."""
    template: dict[str, Any] = copy.deepcopy(YAML(typ="safe", pure=True).load(template_text()))
    spec = template["spec"]
    (container,) = spec["initContainers"]
    spec["terminationGracePeriodSeconds"] = grace_least_s(needs) + APPLICATION_S
    container["image"] = options.image or f"localhost/framegate:{installed_version() or 'latest'}"
    container["ports"] = _ports(options, needs)
    _probes(container, options, needs)
    container["lifecycle"]["preStop"]["exec"]["command"][-1] = needs.admin_socket
    if needs.admin_socket != PodRequirements().admin_socket:
        container["env"].append({"name": "FRAMEGATE_ADDRESS", "value": f"unix:{needs.admin_socket}"})  # for `kubectl exec … framegate status`
    if options.env_secret is not None:
        container["envFrom"] = [{"secretRef": {"name": options.env_secret}}]
    cpu = f"{options.cpu_m}m" if options.cpu_m % 1000 else str(options.cpu_m // 1000)
    container["resources"] = {
        "requests": {"cpu": f"{min(_REQUESTED_CPU_M, options.cpu_m)}m", "memory": quantity(min(_REQUESTED_MEMORY, options.memory))},
        "limits": {"cpu": cpu, "memory": quantity(options.memory)},
    }
    _volumes(container, spec, options, needs)
    if options.any_user:
        del container["securityContext"]["runAsUser"], container["securityContext"]["runAsGroup"]
    if options.tap_claim is not None and options.fs_group and not options.any_user and needs.tap_folder is not None:
        spec["securityContext"] = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
    if options.config_map is None:
        template["metadata"]["annotations"] = {CONFIGURATION: needs.text}
    return template


def _ports(options: Options, needs: PodRequirements) -> list[dict[str, Any]]:
    named = [(_FIRST_PORT if index == 0 else f"fg-data-{index + 1}", port) for index, port in enumerate(needs.data_ports)]
    if needs.metrics_port is not None:
        named.append(("fg-metrics", needs.metrics_port))
    named.append(("fg-health", _probe_port(needs)))
    # Ports are listed for those who read them: Kubernetes opens others as well. Nobody else reaches those on the loopback address.
    brokers = [{"containerPort": port} for first, last in needs.data_ranges for port in range(first, last + 1)]
    return [*({"name": name, "containerPort": port} for name, port in named), *brokers]


def _probe_port(needs: PodRequirements) -> int:
    assert needs.health_port is not None, "the caller asked needs for it before"
    return needs.health_port


def _probes(container: dict[str, Any], options: Options, needs: PodRequirements) -> None:
    port = _probe_port(needs)
    for kind in ("readiness", "liveness"):
        probe = container[f"{kind}Probe"]
        settings = {name: value for name, value in probe.items() if name != "httpGet"}
        by_grpc, by_http = {"grpc": {"port": port, "service": f"framegate-{kind}"}}, {"httpGet": {**probe["httpGet"], "port": port}}
        container[f"{kind}Probe"] = {**(by_http if options.probes == "http" else by_grpc), **settings}
    # The hook asks over HTTP in any case, which the port answers with both protocols. It allows twice the time of a start on this part of a CPU.
    most_s = max(_START_LEAST_S, -(-2 * START_CPU_MS // options.cpu_m))
    container["lifecycle"]["postStart"]["exec"]["command"][-3:] = [needs.health_host, str(port), str(most_s)]


def _volumes(container: dict[str, Any], spec: dict[str, Any], options: Options, needs: PodRequirements) -> None:
    folders = {
        "framegate-config": CONFIGURATION_FOLDER,
        "framegate-tls": needs.tls_folder,
        "framegate-run": needs.admin_folder,
        "framegate-tap": needs.tap_folder,
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: {**mount, "mountPath": folders[mount["name"]]} for mount in container["volumeMounts"] if folders[mount["name"]]}
    if options.config_map is None:
        item = {"path": FILE_NAME, "fieldRef": {"fieldPath": f"metadata.annotations['{CONFIGURATION}']"}}
        volumes["framegate-config"] = {"name": "framegate-config", "downwardAPI": {"items": [item]}}
    else:
        volumes["framegate-config"]["configMap"]["name"] = options.config_map
    volumes["framegate-tls"]["secret"]["secretName"] = options.tls_secret
    mode = volumes["framegate-tls"]["secret"]["defaultMode"]
    if options.tls_volume is not None and "framegate-tls" in mounts:
        mounts["framegate-tls"]["name"] = options.tls_volume
        del volumes["framegate-tls"]
    if options.claim_each and "framegate-tap" in mounts:
        mounts["framegate-tap"]["name"] = options.tap_claim
        del volumes["framegate-tap"]  # the controller of StatefulSets adds one with the claim's name
    elif options.tap_claim is not None:
        volumes["framegate-tap"] = {"name": "framegate-tap", "persistentVolumeClaim": {"claimName": options.tap_claim}}
    else:
        volumes["framegate-tap"]["emptyDir"]["sizeLimit"] = quantity(-(-needs.tap_bytes // MIB) * MIB)
    for index, (secret, folder) in enumerate(options.secrets):
        name = f"framegate-secret-{index + 1}"
        mounts[name] = {"name": name, "mountPath": folder, "readOnly": True}
        volumes[name] = {"name": name, "secret": {"secretName": secret, "defaultMode": mode}}
    container["volumeMounts"] = list(mounts.values())
    spec["volumes"] = [volume for name, volume in volumes.items() if name in mounts]
