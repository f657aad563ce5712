"""The first configuration in front of a Kafka cluster: valid, for a machine and for a pod, and of what the pod then needs nothing is missing."""

from pathlib import Path

import pytest

from framegate.control.configuration.load import judge
from framegate.control.configuration.reading import parse_document
from framegate.control.kubernetes.kafka_sidecar import POD_PORT, kafka_configuration
from framegate.control.kubernetes.pod_requirements import read_configuration, requirements_of
from framegate.control.kubernetes.sidecar import Options, pod_template

BOOTSTRAP = ("kafka-1:9092", "[::1]:9094")


@pytest.mark.parametrize("in_pod", [True, False])
def test_it_is_valid_and_has_the_brokers_that_were_given(tmp_path: Path, in_pod: bool) -> None:
    text = kafka_configuration(BOOTSTRAP, "# about", node="n", port=19092, in_pod=in_pod)
    found = judge(parse_document(text, tmp_path), machine=False)
    assert (found.faults, found.warnings) == ([], [])
    assert found.config is not None
    (listener,), (upstream,) = found.config.listeners, found.config.upstreams
    assert listener.brokers is not None
    assert upstream.kafka is not None
    assert (listener.address, listener.brokers.ports, upstream.kafka.bootstrap) == ("127.0.0.1:19092", "19100-19199", BOOTSTRAP)
    assert text.startswith("# about\n")
    assert len([line for line in text.splitlines() if line and not line.lstrip().startswith("#")]) <= 25


def test_a_pod_with_it_lists_no_port_of_clients_and_needs_no_certificate() -> None:
    config, text, warnings = read_configuration(kafka_configuration(BOOTSTRAP, "#"))
    needs = requirements_of(config, text, 1)
    assert (warnings, needs.tls_folder, needs.inner_ports, needs.inner_ranges) == ([], None, (POD_PORT,), ((9100, 9199),))
    template = pod_template(Options(), needs)
    (container,) = template["spec"]["initContainers"]
    assert [port["name"] for port in container["ports"]] == ["fg-metrics", "fg-health"]
    assert [volume["name"] for volume in template["spec"]["volumes"]] == ["framegate-config", "framegate-run"]
