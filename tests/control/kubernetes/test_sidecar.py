"""What a pod gets follows from the configuration and the options."""

import dataclasses
from typing import Any

from framegate.control.kubernetes.pod_requirements import DEFAULT_REQUIREMENTS, PodRequirements
from framegate.control.kubernetes.sidecar import Options, grace_least_s, pod_template, quantity
from framegate.proxy.config.model import MIB
from tests.fakes.cases import each_of


def container_of(options: Options | None = None, needs: PodRequirements = DEFAULT_REQUIREMENTS) -> dict[str, Any]:
    (container,) = pod_template(options or Options(), needs)["spec"]["initContainers"]
    return dict(container)


def test_ports_are_those_of_the_configuration() -> None:
    ranges = {"data_ranges": ((6, 8),), "inner_ranges": ((9, 9),)}  # of brokers: in front of a cluster, and beside an application
    needs = dataclasses.replace(DEFAULT_REQUIREMENTS, data_ports=(1, 2), inner_ports=(3,), metrics_port=None, health_port=4, http_port=5, **ranges)
    assert container_of(needs=needs)["ports"] == [
        {"name": "framegate-data", "containerPort": 1},
        {"name": "fg-data-2", "containerPort": 2},
        {"name": "fg-health", "containerPort": 4},
        *({"containerPort": port} for port in (6, 7, 8)),
    ]
    assert needs.ports == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert all(len(port["name"]) <= 15 for port in container_of()["ports"])


@each_of("kind", ["readiness", "liveness"])
def test_probes_use_the_chosen_protocol(kind: str) -> None:
    needs = dataclasses.replace(DEFAULT_REQUIREMENTS, health_port=4, http_port=5)
    by_grpc, by_http = container_of(Options(probes="grpc"), needs)[f"{kind}Probe"], container_of(needs=needs)[f"{kind}Probe"]
    assert by_grpc.pop("grpc") == {"port": 4, "service": f"framegate-{kind}"}
    assert by_http.pop("httpGet") == {"port": 4, "path": {"readiness": "/ready", "liveness": "/healthz"}[kind]}
    assert by_grpc == by_http


def test_a_start_may_take_as_long_as_its_share_of_a_cpu_needs_and_the_grace_period_outlasts_the_drain() -> None:
    seconds = {1000: 30, 101: 30, 100: 30, 99: 31, 30: 100, 1: 3000}
    assert {cpu_m: int(_start_hook(Options(cpu_m=cpu_m))[-1]) for cpu_m in seconds} == seconds
    for drain_s, delay_s, ports, least in ((0, 0, (1,), 12), (30, 5, (1,), 47), (30, 5, (), 42), (3600, 60, (1,), 3672)):
        needs = dataclasses.replace(DEFAULT_REQUIREMENTS, drain_s=drain_s, delay_s=delay_s, data_ports=ports)
        assert (grace_least_s(needs), pod_template(Options(), needs)["spec"]["terminationGracePeriodSeconds"]) == (least, least + 18)


def test_the_hook_asks_where_health_is_with_both_protocols_of_probes() -> None:
    needs = dataclasses.replace(DEFAULT_REQUIREMENTS, health_host="192.0.2.1", health_port=4, http_port=5)
    for probes in ("grpc", "http"):
        assert _start_hook(Options(probes=probes), needs)[-4:-1] == ["framegate.control.post_start", "192.0.2.1", "4"]
    assert _start_hook(Options())[-4:] == ["framegate.control.post_start", "127.0.0.1", "9901", "30"]


def _start_hook(options: Options, needs: PodRequirements = DEFAULT_REQUIREMENTS) -> list[str]:
    return list(container_of(options, needs)["lifecycle"]["postStart"]["exec"]["command"])


def test_what_is_requested_is_never_above_what_is_allowed() -> None:
    assert container_of(Options(memory=128 * MIB, cpu_m=100))["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "100m", "memory": "128Mi"},
    }
    assert container_of(Options(memory=1024 * MIB, cpu_m=2500))["resources"] == {
        "requests": {"cpu": "200m", "memory": "192Mi"},
        "limits": {"cpu": "2500m", "memory": "1Gi"},
    }
    assert container_of(Options(cpu_m=3000))["resources"]["limits"]["cpu"] == "3"
    assert quantity(1000) == "1000"


def test_only_volumes_that_are_needed_are_mounted() -> None:
    needs = dataclasses.replace(DEFAULT_REQUIREMENTS, tls_folder=None, tap_folder=None)
    spec = pod_template(Options(), needs)["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["framegate-config", "framegate-run"]
    assert [mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]] == ["framegate-config", "framegate-run"]


def test_volumes_are_mounted_where_the_configuration_looks() -> None:
    needs = dataclasses.replace(DEFAULT_REQUIREMENTS, tls_folder="/tls", tap_folder="/tap", admin_socket="/admin/a.sock", tap_bytes=3 * MIB - 1)
    options = Options(config_map="c", tls_secret="t", secrets=(("s", "/sasl"),))
    spec = pod_template(options, needs)["spec"]
    (container,) = spec["initContainers"]
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
        "framegate-config": "/etc/framegate",
        "framegate-tls": "/tls",
        "framegate-run": "/admin",
        "framegate-tap": "/tap",
        "framegate-secret-1": "/sasl",
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["framegate-config"]["configMap"] == {"name": "c"}
    assert volumes["framegate-tls"]["secret"] == {"secretName": "t", "defaultMode": 0o444}
    assert volumes["framegate-secret-1"]["secret"] == {"secretName": "s", "defaultMode": 0o444}
    assert volumes["framegate-tap"]["emptyDir"] == {"sizeLimit": "3Mi"}
    assert container["lifecycle"]["preStop"]["exec"]["command"] == [
        "/opt/framegate/bin/python",
        "-P",
        "-m",
        "framegate.control.pre_stop",
        "/admin/a.sock",
    ]
    assert {"name": "FRAMEGATE_ADDRESS", "value": "unix:/admin/a.sock"} in container["env"]


def test_a_secret_becomes_environment_which_framegates_own_variables_precede() -> None:
    containers = [pod_template(Options(env_secret=name), DEFAULT_REQUIREMENTS)["spec"]["initContainers"][0] for name in (None, "s3")]
    assert [container.get("envFrom") for container in containers] == [None, [{"secretRef": {"name": "s3"}}]]
    assert containers[0]["env"] == containers[1]["env"]
    assert {"name": "FRAMEGATE_NODE", "value": "$(POD_NAME)"} in containers[1]["env"]


def test_only_a_claim_for_the_tap_brings_a_group_of_the_pods() -> None:
    group = {"fsGroup": 10001, "fsGroupChangePolicy": "OnRootMismatch"}
    assert pod_template(Options(tap_claim="mine"), DEFAULT_REQUIREMENTS)["spec"]["securityContext"] == group
    users = [pod_template(Options(any_user=each), DEFAULT_REQUIREMENTS)["spec"]["initContainers"][0]["securityContext"] for each in (False, True)]
    assert [("runAsUser" in user, "runAsGroup" in user, user["runAsNonRoot"]) for user in users] == [(True, True, True), (False, False, True)]
    without_tap = dataclasses.replace(DEFAULT_REQUIREMENTS, tap_folder=None)
    for options, needs in [
        (Options(), DEFAULT_REQUIREMENTS),
        (Options(tap_claim="mine", fs_group=False), DEFAULT_REQUIREMENTS),
        (Options(tap_claim="mine"), without_tap),
    ]:
        assert "securityContext" not in pod_template(options, needs)["spec"]


def test_a_configuration_without_a_config_map_is_carried_by_the_pod() -> None:
    template = pod_template(Options(config_map=None), dataclasses.replace(DEFAULT_REQUIREMENTS, text="node: a\n"))
    assert template["metadata"]["annotations"] == {"framegate.io/configuration": "node: a\n"}
    item = {"path": "framegate.yaml", "fieldRef": {"fieldPath": "metadata.annotations['framegate.io/configuration']"}}
    assert template["spec"]["volumes"][0] == {"name": "framegate-config", "downwardAPI": {"items": [item]}}
    assert "annotations" not in pod_template(Options(), DEFAULT_REQUIREMENTS)["metadata"]
