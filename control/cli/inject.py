"""``framegate inject``: adds framegate to the pods of Kubernetes manifests, or removes it."""

import dataclasses
import os
import pathlib
import posixpath
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from framegate.control.cli.kinds import BOOTSTRAP, SIZE, Kind
from framegate.control.cli.options import F, example
from framegate.control.cli.output import counted, first_of, print_note, write_bytes

if TYPE_CHECKING:
    from framegate.control.kubernetes.inject import Injector
    from framegate.control.kubernetes.pod_requirements import PodRequirements
    from framegate.control.kubernetes.sidecar import Options

_STANDARD: Final = pathlib.Path("-")
_MANIFESTS: Final = (".yaml", ".yml", ".json")
_CPU: Final = re.compile(r"(\d+)m|(\d+(?:\.\d{1,3})?)")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IMAGE: Final = re.compile(r"|[a-zA-Z0-9][-a-zA-Z0-9._/:]*(@sha256:[0-9a-f]{64})?")
_IMAGES: Final = re.compile(r"/|/(opt|bin|sbin|lib|lib64|etc|var|var/lib|var/run|run|tmp)|/(opt/framegate|usr|etc/ssl|dev|proc|sys)(/.*)?")
"""Folders of the image that framegate needs."""
_MEMORY_LEAST: Final = 48 << 20
_NAMED: Final = 10  # the most workloads that a message names; it counts the others
_CPU_LEAST_M: Final = 100
_EXIT_FAILED: Final = 1
_EXIT_FAULTY: Final = 2


def _cpu_m(text: str) -> int:
    match = _CPU.fullmatch(text)
    cpu_m = 0 if match is None else int(match[1]) if match[1] else round(float(match[2]) * 1000)
    if cpu_m < 1:
        raise ValueError("is not a number of CPUs: write 2, 0.5 or 500m")
    return cpu_m


def _secret(text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    if not _NAME.fullmatch(name) or not folder.startswith("/") or ".." in folder.split("/"):
        raise ValueError("is not a Secret and a folder: write NAME=/FOLDER")
    folder = posixpath.normpath(folder).replace("//", "/")
    if _IMAGES.fullmatch(folder):
        raise ValueError("would hide files of the image: use another folder")
    return name, folder


def _memory(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < _MEMORY_LEAST:
        raise click.BadParameter(f"must be at least {_MEMORY_LEAST >> 20}MiB, which framegate needs to start", ctx, param)
    return value


def _issuer(text: str) -> tuple[str, str]:
    kind, slash, name = text.rpartition("/")
    kind = kind if slash else "Issuer"
    if kind not in ("Issuer", "ClusterIssuer") or not _NAME.fullmatch(name):
        raise ValueError("is not an issuer: write NAME, or ClusterIssuer/NAME")
    return kind, name


def _text(name: str, pattern: re.Pattern[str], otherwise: str) -> Kind[str]:
    """A text that a pattern describes; ``otherwise``: what is wrong with any other."""

    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(otherwise)
        return text

    return Kind(name, parse)


_NAMED_KIND: Final = _text("name", _NAME, "is not a Kubernetes name: use lower-case letters, digits, hyphens and dots")
_IMAGE_KIND: Final = _text("image", _IMAGE, "is not an image: write REGISTRY/NAME:TAG, or REGISTRY/NAME@sha256:DIGEST")
_HOST_KIND: Final = _text("name", _HOST, "is not a host name: use lower-case letters, digits, hyphens and dots, and optionally *. at the beginning")

_SIDECAR: Final = (
    click.option("--image", type=_IMAGE_KIND, default="", help="framegate's image.  [default: localhost/framegate with this version]"),
    click.option("--memory", type=SIZE, callback=_memory, default="512MiB", show_default=True, help="The container's memory limit."),
    click.option(
        "--cpu", "cpu_m", type=Kind("cpus", _cpu_m), default="1", show_default=True, help="The container's CPU limit, for example 2, 0.5 or 500m."
    ),
    click.option("--any-user", is_flag=True, help="Do not set the user, because the cluster chooses it (OpenShift)."),
    click.option("--probes", type=click.Choice(["grpc", "http"]), default="http", show_default=True, help="Protocol of the kubelet's probes."),
    click.option(
        "--tls-secret", type=_NAMED_KIND, default="framegate-tls", show_default=True, help="Name of the Secret with tls.crt, tls.key and ca.crt."
    ),
    click.option(
        "--secret",
        "secrets",
        type=Kind("name=/folder", _secret),
        multiple=True,
        help="Another Secret and the folder to mount it in. May be repeated.",
    ),
    click.option(
        "--env-secret",
        type=_NAMED_KIND,
        help="A Secret whose keys become environment variables of framegate: the credentials of tap.ship.  [default: none]",
    ),
)


def sidecar_options(function: F) -> F:
    """The options that describe framegate's container."""
    for option in reversed(_SIDECAR):
        function = option(function)
    return function


@click.command(
    short_help="Add framegate to the pods of Kubernetes manifests.",
    epilog=example(
        "framegate inject -f deployment.yaml --config framegate.yaml | kubectl apply -f -",
        "kubectl get deployment lookup -o yaml | framegate inject -f - --image registry.example.com/framegate:1.0 | kubectl apply -f -",
        "framegate inject -f manifests/ --in-place --config framegate.yaml --certificate ClusterIssuer/internal --network-policy",
        "framegate inject -f deployment.yaml --kafka kafka-1.example.org:9092,kafka-2.example.org:9092 | kubectl apply -f -",
        "framegate inject -f deployment.yaml --remove",
    ),
)
@click.option(
    "--filename", "-f", "sources", type=click.Path(exists=True, allow_dash=True, path_type=pathlib.Path), multiple=True, required=True,
    help="A manifest, a folder of manifests (*.yaml, *.yml, *.json; not its subfolders), or - for standard input. May be repeated.",
)  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove framegate. The options that describe framegate have no effect then.")
@click.option(
    "--output", "-o", "target", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="The file to write.  [default: standard output]"
)
@click.option("--in-place", is_flag=True, help="Change the manifests in place.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="framegate's configuration. Determines ports, probes, volumes and grace periods; is added as a ConfigMap; a change makes new pods."
    "  [default: the ConfigMap exists, with a configuration like the one in deploy/kustomize/example]",
)  # fmt: skip
@click.option(
    "--kafka", "bootstrap", type=BOOTSTRAP,
    help="Instead of --config: a configuration in front of the whole Kafka cluster of these brokers. The application connects to 127.0.0.1:9092.",
)  # fmt: skip
@click.option(
    "--config-map",
    type=_NAMED_KIND,
    default="framegate",
    show_default=True,
    help="Name of the ConfigMap with framegate.yaml; with --config, the beginning of the name.",
)
@sidecar_options
@click.option(
    "--tls-volume", type=_NAMED_KIND, help="Instead of --tls-secret: a volume of the pod with the certificates: projected, CSI, or SPIFFE's files."
)
@click.option("--certificate", "issuer", type=Kind("issuer", _issuer), help="Add a cert-manager Certificate for each workload, with this issuer.")
@click.option(
    "--dns-name", "dns_names", type=_HOST_KIND, multiple=True,
    help="DNS name of the Certificate. May be repeated.  [default: the workload's name]",
)  # fmt: skip
@click.option(
    "--network-policy", is_flag=True, help="Add a NetworkPolicy that closes the ports framegate connects to, and those that no container lists."
)
@click.option("--pod-monitor", is_flag=True, help="Add a PodMonitor for the Prometheus Operator.")
@click.option("--disruption-budget", is_flag=True, help="Add PodDisruptionBudgets, so that one pod at a time is evicted.")
@click.option(
    "--tap-claim", type=_NAMED_KIND,
    help="The tap's PersistentVolumeClaim; of a StatefulSet one for each pod.  [default: none; the log is deleted with the pod]",
)  # fmt: skip
@click.option(
    "--no-fs-group", "fs_group", is_flag=True, flag_value=False, default=True,
    help="With --tap-claim: do not set the pod's fsGroup, because user 10001 can write to the claim.  [default: set 10001 if the pod has none]",
)  # fmt: skip
@click.option(
    "--tap-claim-size", "tap_claim_bytes", type=SIZE,
    help="Also create the claim of --tap-claim, with this size.  [default: it exists; a StatefulSet creates its own, as large as the tap may become]",
)  # fmt: skip
def inject(
    sources: tuple[pathlib.Path, ...],
    remove: bool,
    target: pathlib.Path | None,
    in_place: bool,
    config: pathlib.Path | None,
    bootstrap: tuple[str, ...] | None,
    **told: Any,
) -> None:
    """Add framegate to the pods of Kubernetes manifests, as a native sidecar. Prints the manifests for `kubectl apply -f -`.

    Changes Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and Pods, in YAML or JSON, also in Lists and files with several
    documents. Other objects, and objects with the label framegate.io/inject: "false", are not changed. Comments, order, quotes and indentation are
    kept. Injecting again replaces the earlier injection; --remove restores the original bytes. The pod's own terminationGracePeriodSeconds and
    groups are kept.

    Exit codes: 0 success; 1 a file cannot be written; 2 a manifest or the configuration has faults (all are listed, nothing is written).
    """
    if in_place and (target is not None or _STANDARD in sources):
        raise click.UsageError("--in-place cannot be used with --output or standard input")
    if config is not None and bootstrap is not None:
        raise click.UsageError("--kafka cannot be used with --config")
    if not told["fs_group"] and told["tap_claim"] is None:
        raise click.UsageError("--no-fs-group needs --tap-claim")
    if told["tap_claim_bytes"] is not None and told["tap_claim"] is None:
        raise click.UsageError("--tap-claim-size needs --tap-claim")
    if not in_place and target is None and sys.stdout is None:
        _fail(["standard output is closed; use --output or --in-place"], _EXIT_FAILED)

    texts = _read(sources)
    injector = None if remove else _injector(config, bootstrap, told)
    changed, said = _changed(texts, injector)
    if in_place:
        _write({path: changed[path] for path, text in texts.items() if changed[path] != text})
    elif target is not None:
        _write({target: _joined(list(changed.values()))})
    else:
        write_bytes(_joined(list(changed.values())).encode())
    print_note(said)


def _fail(lines: list[str], code: int = _EXIT_FAULTY) -> NoReturn:
    for line in lines:
        print_note(line)
    sys.exit(code)


def _read(sources: tuple[pathlib.Path, ...]) -> dict[pathlib.Path, str]:
    paths: list[pathlib.Path] = []
    for source in sources:
        found = sorted(path for path in source.iterdir() if path.suffix in _MANIFESTS and path.is_file()) if source.is_dir() else [source]
        if not found:
            _fail([f"{source} has no manifest: no *.yaml, *.yml or *.json file"])
        paths += found
    texts: dict[pathlib.Path, str] = {}
    for path in dict.fromkeys(paths):
        try:
            if path == _STANDARD and sys.stdin is None:
                _fail(["standard input is closed"], _EXIT_FAILED)
            data = sys.stdin.buffer.read() if path == _STANDARD else path.read_bytes()
            texts[path] = data.decode("utf-8")
        except OSError as error:
            _fail([f"{path} cannot be read: {error.strerror or error}"])
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            _fail([f"{_shown(path)}: line {line}: is not UTF-8"])
    return texts


def _shown(path: pathlib.Path) -> str:
    return "standard input" if path == _STANDARD else str(path)


def _changed(texts: dict[pathlib.Path, str], injector: "Injector | None") -> tuple[dict[pathlib.Path, str], str]:
    """The changed texts, and the message to print when they are written."""
    from framegate.control.kubernetes.inject import remove, shared_objects
    from framegate.control.kubernetes.manifest import ManifestError

    changed: dict[pathlib.Path, str] = {}
    faults: list[str] = []
    touched: list[str] = []
    shared: list[str] = []
    for path, text in texts.items():
        try:
            if injector is not None:
                changed[path] = injector.inject(text)
            else:
                changed[path], removed = remove(text)
                touched += removed
                shared += shared_objects(text)
        except ManifestError as error:
            faults += [f"{_shown(path)}: {fault}" for fault in error.faults]
    if faults:
        _fail([*faults, f"{counted(len(faults), 'fault')}, nothing was written"])
    if injector is not None:
        touched = injector.injected
        if not touched:
            kinds = "no Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, CronJob or Pod"
            _fail([f'{", ".join(map(_shown, texts))}: has no pod to inject: {kinds}, or all of them have framegate.io/inject: "false"'])
        for note in injector.notes:
            print_note(note)
    if shared:
        print_note(f"also removed {', '.join(shared)}; inject workloads of other files that use it again")
    return changed, f"{'added to' if injector is not None else 'removed from'} {first_of(touched, _NAMED) or 'nothing: no object has framegate'}"


def _joined(texts: list[str]) -> str:
    """One stream of documents; a single text is not changed."""
    if len(texts) == 1:
        return texts[0]
    parts = [text.removeprefix("\ufeff") for text in texts]
    return "".join((part if part.startswith("---") else f"---\n{part}") + ("" if part.endswith("\n") else "\n") for part in parts)


def _write(texts: dict[pathlib.Path, str]) -> None:
    """Replace files; for a link, its target. All new files are written before the first is renamed, so that a full disk changes nothing."""
    beside: dict[pathlib.Path, str] = {}
    done: list[str] = []
    path = pathlib.Path()
    try:
        for path, text in texts.items():
            beside[path] = _beside(path.resolve(), text)
        for path, name in beside.items():
            os.replace(name, path.resolve())
            done.append(str(path))
    except OSError as error:
        written = f"these were written: {', '.join(done)}" if done else "nothing was written"
        _fail([f"{path} cannot be written: {error.strerror or error}; {written}"], _EXIT_FAILED)
    finally:
        for name in list(beside.values())[len(done) :]:
            os.unlink(name)


def _beside(target: pathlib.Path, text: str) -> str:
    """Write a new file with the mode of ``target`` into its folder, and return its name."""
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~umask)
    except BaseException:
        os.unlink(name)
        raise
    return name


def _injector(config: pathlib.Path | None, bootstrap: tuple[str, ...] | None, told: dict[str, Any]) -> "Injector":
    from framegate.control.kubernetes.checks import USUAL_FILES, unmet, unusual_files
    from framegate.control.kubernetes.inject import Injector
    from framegate.control.kubernetes.objects import Wanted
    from framegate.control.kubernetes.sidecar import START_CPU_MS, Options

    options = Options(**{field.name: told[field.name] for field in dataclasses.fields(Options) if field.name in told})
    wanted = Wanted(
        **{name: told[name] for name in ("issuer", "dns_names", "network_policy", "pod_monitor", "disruption_budget")},
        tap_claim_bytes=told["tap_claim_bytes"] or 0,
    )
    needs = _needs(config, bootstrap, options)
    if options.cpu_m < _CPU_LEAST_M:
        start_s = -(-START_CPU_MS // options.cpu_m)
        print_note(f"warning: --cpu {options.cpu_m}m: framegate needs {start_s} s to start, and the application waits for it; use 100m or more")
    missing = unmet(options, needs, wanted)
    shown = config or ("--kafka" if bootstrap else "the options")
    if missing:
        _fail([f"{shown}: {reason}" for reason in missing])
    for name, key in unusual_files(needs) if options.tls_volume is None else ():
        usual = ", ".join(USUAL_FILES)
        print_note(f"warning: {config}: {key}: the Secret {options.tls_secret} must also have {name}, besides the usual files ({usual})")
    return Injector(options, needs, wanted)


def _needs(config: pathlib.Path | None, bootstrap: tuple[str, ...] | None, options: "Options") -> "PodRequirements":
    from framegate.control.configuration.document import ConfigurationError
    from framegate.control.kubernetes.kafka_sidecar import kafka_configuration
    from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS, PodRequirementsError, fitted_requirements

    if config is None and bootstrap is None:
        return DEFAULT_REQUIREMENTS
    shown, about = config or "--kafka", "# Written by `framegate inject --kafka`."
    try:
        found, warnings = fitted_requirements(config or kafka_configuration(bootstrap or (), about), options.cpu_m, options.memory)
    except ConfigurationError as error:
        _fail([fault.in_file(shown) for fault in error.faults])
    except PodRequirementsError as error:
        _fail([f"{shown}: {reason}" for reason in error.reasons])
    for line in warnings:
        print_note(f"warning: {shown}: {line}")
    return found
