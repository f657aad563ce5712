"""Conflicts with a pod are faults with line, reason and what to do."""

import dataclasses

from framegate.control.kubernetes.checks import faults_of, unmet
from framegate.control.kubernetes.manifest import Fault, read_manifest, workloads
from framegate.control.kubernetes.objects import Wanted, options_of
from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS, PodRequirements
from framegate.control.kubernetes.sidecar import Options, pod_template
from tests.fakes.cases import each_of

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
APP = "  containers: [{name: app}]\n"
APPS = "apiVersion: apps/v1\nkind: %s\nmetadata: {name: a}\nspec:\n  %s\n  template: {spec: {containers: [{name: app}]}}\n"
CRON = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
spec:
  %s
  jobTemplate: {spec: {template: {spec: {containers: [{name: app}]}}}}
"""


def faults(text: str, options: Options | None = None, needs: PodRequirements = DEFAULT_REQUIREMENTS) -> list[Fault]:
    (workload,) = workloads(read_manifest(text))
    options = options_of(workload, options or Options(), needs, Wanted())
    return faults_of(workload, pod_template(options, needs), options, needs)


@each_of(
    ("spec", "line", "words"),
    [
        ("  nodeName: n\n", 5, "has no containers"),
        ("  containers: []\n", 5, "has no containers"),
        ("  containers: [{name: app}, {name: framegate}]\n", 5, "already has a container framegate that inject did not add"),
        (APP + "  initContainers:\n  - name: framegate\n", 7, "has a container framegate"),
        (APP + "  volumes:\n  - name: mine\n  - name: framegate-run\n", 8, "has a volume framegate-run"),
        ("  containers: [{name: app, ports: [{containerPort: 9093}]}]\n", 5, "container app has port 9093"),
        ("  containers: [{name: app, ports: [{containerPort: 9901, protocol: TCP}]}]\n", 5, "has port 9901"),
        (APP + "  initContainers: [{name: i, ports: [{containerPort: 9464}]}]\n", 6, "container i has port 9464"),
        ("  containers: [{name: app, ports: [{containerPort: 1, name: fg-health}]}]\n", 5, "has a port named fg-health"),
        (APP + "  hostNetwork: true\n", 6, "has hostNetwork"),
        (APP + "  hostNetwork: yes\n", 6, "has hostNetwork"),
        ("  containers: [{name: app, ports: [{containerPort: 0x2385}]}]\n", 5, "container app has port 9093"),
        (APP + "  terminationGracePeriodSeconds: 0x1e\n", 6, "has terminationGracePeriodSeconds 30"),
        (APP + "  terminationGracePeriodSeconds: 3_0\n", 6, "has terminationGracePeriodSeconds 30"),
        (APP + "  terminationGracePeriodSeconds: 30.0\n", 6, "has terminationGracePeriodSeconds 30"),
        (APP + "  os: {name: windows}\n", 6, "is for windows"),
        (APP + "  shareProcessNamespace: true\n  securityContext: {runAsUser: 10001}\n", 7, "runs as user 10001"),
        ("  shareProcessNamespace: true\n  containers: [{name: app, securityContext: {runAsUser: 10001}}]\n", 6, "runs as user 10001"),
    ],
)
def test_a_conflict_is_a_fault_at_its_line(spec: str, line: int, words: str) -> None:
    (fault,) = faults(POD + spec)
    assert fault.line == line
    assert fault.what.startswith("Pod a: ")
    assert words in fault.what


def test_a_port_of_another_protocol_is_free() -> None:
    assert faults(POD + "  containers: [{name: app, ports: [{containerPort: 9093, protocol: UDP}, {containerPort: 9094}]}]\n") == []


@each_of(("grace", "good"), [(46, False), (47, True), (48, True), (0, False)])
def test_a_grace_period_of_the_users_must_leave_framegate_its_end(grace: int, good: bool) -> None:
    found = faults(f"{POD}{APP}  terminationGracePeriodSeconds: {grace}\n")
    assert bool(found) is not good
    assert good or f"has terminationGracePeriodSeconds {grace}, but framegate needs 47" in found[0].what


@each_of(("hook", "good"), [("sleep: {seconds: 34}", False), ("sleep: {seconds: 35}", True), ("exec: {command: [sleep]}", True)])
def test_an_application_that_sleeps_must_outlast_the_connections_of_other_pods(hook: str, good: bool) -> None:
    found = faults(f"{POD}  containers: [{{name: app, lifecycle: {{preStop: {{{hook}}}}}}}]\n")
    assert bool(found) is not good
    assert good or "sleeps 34 s, but connections of other pods end within 35 s" in found[0].what


@each_of(
    ("kind", "spec", "words"),
    [
        ("DaemonSet", "selector: {}", "a pod on each node"),
        ("ReplicaSet", "replicas: 2", "a StatefulSet, whose pods get a claim each, or leave out --tap-claim: each pod then has a log of at most"),
        ("CronJob", "x: y", "use concurrencyPolicy: Forbid"),
        ("CronJob", "concurrencyPolicy: Allow", "use concurrencyPolicy: Forbid"),
        ("Deployment", "replicas: 1", "use strategy: {type: Recreate}"),
        ("Deployment", "strategy: {type: RollingUpdate}", "use strategy"),
    ],
)
def test_a_claim_is_for_one_pod_at_a_time(kind: str, spec: str, words: str) -> None:
    text = CRON % spec if kind == "CronJob" else APPS % (kind, spec)
    (fault,) = faults(text, Options(tap_claim="c"))
    assert words in fault.what
    assert faults(text) == []
    assert faults(text, Options(tap_claim="c"), dataclasses.replace(DEFAULT_REQUIREMENTS, tap_folder=None)) == []


CHOSEN = ["secret: {secretName: s, defaultMode: 256}", "configMap: {name: c, items: [{key: k, path: p, mode: 0600}]}"]
HELD = [
    "persistentVolumeClaim: {claimName: c}",
    "ephemeral: {}",
    "csi: {driver: d}",
    *CHOSEN,
    "projected: {sources: [{secret: {items: [{mode: 32}]}}]}",
]
FREE = [
    "emptyDir: {}",
    "hostPath: {path: /x}",
    "secret: {secretName: s}",
    "secret: {secretName: s, defaultMode: 288}",
    "secret: {secretName: s, defaultMode: 0444}",
    "downwardAPI: {defaultMode: 420}",
]


@each_of("volume", HELD)
def test_a_group_for_the_claim_is_refused_where_it_would_change_the_modes_of_other_files(volume: str) -> None:
    text = f"{POD}{APP}  volumes:\n  - {{name: mine, {volume}}}\n"
    (fault,) = faults(text, Options(tap_claim="c"))
    assert (fault.line, "has a volume mine; the fsGroup" in fault.what, "--no-fs-group" in fault.what) == (7, True, True)
    assert faults(text) == []
    assert faults(text, Options(tap_claim="c", fs_group=False)) == []
    assert faults(f"{text}  securityContext: {{fsGroup: 7}}\n", Options(tap_claim="c")) == []
    assert len(faults(f"{text}  securityContext: {{fsGroup: null}}\n", Options(tap_claim="c"))) == 1


@each_of("volume", FREE)
def test_a_group_for_the_claim_is_good_where_it_changes_nothing(volume: str) -> None:
    assert faults(f"{POD}{APP}  volumes:\n  - {{name: mine, {volume}}}\n", Options(tap_claim="c")) == []


def test_the_claims_of_a_stateful_set_are_volumes_too() -> None:
    (fault,) = faults(APPS % ("StatefulSet", "volumeClaimTemplates: [{metadata: {name: data}}]"), Options(tap_claim="c"))
    assert "has a volume data" in fault.what


def test_certificates_may_be_in_a_volume_of_the_pod() -> None:
    text = f"{POD}{APP}  volumes:\n  - {{name: certs, csi: {{driver: d}}}}\n"
    options = Options(tls_volume="certs")
    assert faults(text, options) == []
    assert [(fault.line, "has no volume certs" in fault.what) for fault in faults(POD + APP, options)] == [(5, True)]
    assert faults(POD + APP, options, dataclasses.replace(DEFAULT_REQUIREMENTS, tls_folder=None)) == []
    spec = pod_template(options, DEFAULT_REQUIREMENTS)["spec"]
    mounts = {mount["mountPath"]: (mount["name"], mount.get("readOnly")) for mount in spec["initContainers"][0]["volumeMounts"]}
    assert mounts["/var/run/framegate/tls"] == ("certs", True)
    assert [volume["name"] for volume in spec["volumes"]] == ["framegate-config", "framegate-run", "framegate-tap"]
    for needs, wanted, good in ((None, Wanted(), True), (None, Wanted(issuer=("Issuer", "i")), False), ("none", Wanted(), False)):
        given = DEFAULT_REQUIREMENTS if needs is None else dataclasses.replace(DEFAULT_REQUIREMENTS, tls_folder=None)
        assert any("--tls-volume cannot be used" in reason for reason in unmet(options, given, wanted)) is not good


def test_each_pod_of_a_stateful_set_has_a_claim_whose_name_is_a_volumes() -> None:
    text = APPS % ("StatefulSet", "replicas: 3")
    cases = {"tap": 0, "a.b": 1, "a" * 63: 0, "a" * 64: 1, "framegate-run": 1, "framegate-tap": 0}
    assert {name: len(faults(text, Options(tap_claim=name))) for name in cases} == cases
    for more in ("volumeClaimTemplates: [{metadata: {name: tap}}]", "x: y"):
        spec = (APPS % ("StatefulSet", more)).replace("[{name: app}]", "[{name: app}], volumes: [{name: tap}]" if more == "x: y" else "[{name: app}]")
        (fault,) = faults(spec, Options(tap_claim="tap", fs_group=False))
        assert "has a volume tap, a name that framegate uses" in fault.what
