"""What a configuration needs from its pod, read on a machine without the pod's files."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.control.configuration.document import ConfigurationError
from framegate.control.kubernetes.pod_requirements import (
    DEFAULT_REQUIREMENTS,
    PodRequirements,
    PodRequirementsError,
    read_configuration,
    requirements_of,
)
from framegate.control.kubernetes.sidecar import grace_least_s
from framegate.proxy.config.model import MIB
from tests.fakes import deploying
from tests.fakes.configuration import load

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "example" / "framegate.yaml"
Write = Callable[[str], Path]
SMALL = """\
node: edge
health: {address: "0.0.0.0:9901"}
listeners:
  - {name: a, address: "0.0.0.0:9093", upstream: u}
upstreams: [{name: u, endpoints: ["127.0.0.1:9190"]}]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "framegate.yaml"
        path.write_text(text)
        return path

    return written


def needs(path: Path, processors: int = 1) -> PodRequirements:
    config, text, _ = read_configuration(path)
    return requirements_of(config, text, processors)


def test_what_is_expected_without_a_configuration_is_the_examples() -> None:
    found = needs(EXAMPLE)
    ports = ("data_ports", "inner_ports", "upstream_ports", "metrics_port", "health_port")
    for name in (*ports, "admin_socket", "drain_s", "tls_folder", "secret_folders", "tap_folder"):
        assert getattr(found, name) == getattr(DEFAULT_REQUIREMENTS, name), name
    assert {name for name, _ in found.tls_files} <= {"tls.crt", "tls.key", "ca.crt"}
    assert found.tap_bytes <= DEFAULT_REQUIREMENTS.tap_bytes


def test_framegates_own_container_reaches_health_at_the_loopback_address_unless_it_has_one_of_its_own(write: Write) -> None:
    hosts = {"0.0.0.0": "127.0.0.1", "[::]": "127.0.0.1", "192.0.2.1": "192.0.2.1", "[2001:db8::1]": "2001:db8::1"}
    assert {host: needs(write(SMALL.replace("0.0.0.0:9901", f"{host}:9901"))).health_host for host in hosts} == hosts


def test_files_of_the_pod_need_not_be_here_and_relative_paths_start_at_the_config_map(write: Write) -> None:
    path = write(SMALL.replace("upstream: u}", "upstream: u, tls: {certificate: tls/c.pem, key: /run/keys/k.pem}}"))
    found = needs(path)
    assert found.tls_folder == "/etc/framegate/tls"
    assert found.secret_folders == (("/run/keys", "listeners[0].tls.key"),)
    assert found.text == path.read_text()


def test_addresses_and_folders_of_the_pod_are_not_asked_of_this_machine(write: Write) -> None:
    text = SMALL.replace("0.0.0.0:9093", "192.0.2.77:9093") + 'tap: {directory: /proc/none}\nadmin: {address: "unix:/proc/none/a.sock"}\n'
    assert needs(write(text)).tap_folder == "/proc/none"
    with pytest.raises(ConfigurationError, match="cannot be bound"):
        load(write(text))


def test_other_faults_are_named_as_check_names_them(write: Write) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(write(SMALL.replace("upstream: u}", "upstream: v, tls: {certificate: c.pem, key: k.pem}}")))
    assert [(fault.line, fault.key) for fault in caught.value.faults] == [(4, "listeners[0].upstream")]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_configuration(Path("/nowhere/framegate.yaml"))
    with pytest.raises(ConfigurationError, match="nodes"):
        read_configuration(write(SMALL.replace("node:", "nodes:")))


def test_files_that_happen_to_be_here_are_not_looked_at(write: Write, tmp_path: Path) -> None:
    for name in ("c", "k", "u", "p", "j", "r"):
        (tmp_path / name).write_text("no PEM, no user, no JSON {")
        (tmp_path / name).chmod(0o666)
    tls = f"tls: {{certificate: {tmp_path}/c, key: {tmp_path}/k, client_auth: required, client_ca: {tmp_path}/c, crl: [{tmp_path}/r]"
    tls += f", certificates: [{{names: [b.example], certificate: {tmp_path}/c, key: {tmp_path}/k}}]}}"
    sasl = f"sasl: {{mechanisms: [PLAIN, OAUTHBEARER], users: {tmp_path}/u, tokens: {{issuer: i, audience: a, jwks: {tmp_path}/j}}}}"
    out = f"tls: {{ca: {tmp_path}/c}}, sasl: {{mechanism: PLAIN, user: me, password_file: {tmp_path}/p}}"
    path = write(SMALL.replace("upstream: u}", f"upstream: u, protocol: kafka, {tls}, {sasl}}}").replace('9190"]}', f'9190"], {out}}}'))
    assert read_configuration(path)[2] == []


def test_a_listener_that_only_the_pod_reaches_has_no_port_for_others(write: Write) -> None:
    for address in ("127.0.0.1:9093", "localhost:9093", "[::1]:9093", "127.9.9.9:9093"):
        found = needs(write(SMALL.replace("0.0.0.0:9093", address)))
        assert (found.data_ports, found.inner_ports) == ((), (9093,))
    assert needs(write(SMALL)).data_ports == (9093,)


def test_what_does_not_work_in_a_pod_is_refused(write: Write) -> None:
    for was, now, words in (
        ('health: {address: "0.0.0.0:9901"}\n', "", "there is no health section"),
        ("0.0.0.0:9901", "127.0.0.1:9901", "which the kubelet cannot reach"),
        ("0.0.0.0:9901", "0.0.0.0:0", "health.address is port 0"),
        ("0.0.0.0:9093", "0.0.0.0:0", r"listeners\[0\].address is port 0"),
        ("0.0.0.0:9093", "unix:/run/a.sock", "is a Unix socket"),
        ("upstream: u}", "upstream: u, tls: {certificate: c.pem, key: /k/k}}", "is a file in /etc/framegate, .* /var/run/framegate/tls/c.pem"),
        ('9190"]}', '9190"], tls: {ca: /etc/framegate/ca.crt}}', "the ConfigMap with only the configuration is mounted"),
        ("node:", "log: {audit: {file: /var/log/audit.log}}\nnode:", "log.audit.file is in /var/log, which a pod cannot write: use /run/framegate"),
        ("node:", 'admin: {view: {address: "unix:/run/view.sock"}}\nnode:', "admin.view.address is in /run, which a pod cannot write"),
        ('9190"]}', '9190"], tls: {ca: /etc/ssl/certs/own.pem}}', "has the image's public certificate authorities .*ca-certificates.crt"),
    ):
        with pytest.raises(PodRequirementsError, match=words):
            needs(write(SMALL.replace(was, now)))


def test_the_tap_needs_room_for_its_budget_and_open_segments_and_a_drain_takes_whole_seconds(write: Write) -> None:
    path = write(f"{SMALL}tap: {{directory: /tap, budget: 100MiB, segment_size: 10MiB}}\n")
    assert needs(path).tap_bytes == (100 + 2 * 10 + 16) * MIB
    assert needs(path, 3).tap_bytes == (100 + 4 * 10 + 16) * MIB
    assert needs(write(SMALL)).tap_folder is None
    ships = needs(write(f"{SMALL}tap: {{directory: /tap, ship: {{to: 's3://bucket'}}}}\n"))
    assert grace_least_s(ships) == grace_least_s(dataclasses.replace(ships, ships=False)) + 6
    seconds = {"0": 0, "1ms": 1, "999ms": 1, "1s": 1, "1001ms": 2}
    assert {text: needs(write(f"{SMALL}drain: {{timeout: {text}, quiet: 0}}\n")).drain_s for text in seconds} == seconds


def test_upstreams_certificates_are_the_secret_when_listeners_have_none(write: Write) -> None:
    path = write(SMALL.replace('9190"]}', '9190"], tls: {ca: /tls/ca.crt}}'))
    assert (needs(path).tls_folder, needs(path).secret_folders) == ("/tls", ())
    assert needs(path).tls_files == (("ca.crt", "upstreams[0].tls.ca"),)


def test_public_authorities_are_the_images_and_need_no_volume(write: Write) -> None:
    bundle = deploying.module("image_root").CERTIFICATES
    path = write(SMALL.replace('9190"]}', f'9190"], tls: {{ca: {bundle}}}}}'))
    assert (needs(path).tls_folder, needs(path).tls_files, needs(path).secret_folders) == (None, (), ())
    both = write(path.read_text().replace("upstream: u}", "upstream: u, tls: {certificate: /tls/tls.crt, key: /tls/tls.key}}"))
    assert needs(both).tls_folder == "/tls"
    assert needs(both).tls_files == (("tls.crt", "listeners[0].tls.certificate"), ("tls.key", "listeners[0].tls.key"))


def test_ports_of_brokers_are_ranges_which_containers_of_the_pod_must_leave_alone(write: Write) -> None:
    cluster = SMALL.replace('endpoints: ["127.0.0.1:9190"]', 'kafka: {bootstrap: ["kafka:9092"]}')
    listener = 'upstream: u, protocol: kafka, brokers: {{ports: "{}", advertise: edge}}'
    for address, ports, data, inner in (("0.0.0.0:9093", "9100-9102", ((9100, 9102),), ()), ("127.0.0.1:9093", "9100", (), ((9100, 9100),))):
        found = needs(write(cluster.replace("0.0.0.0:9093", address).replace("upstream: u", listener.format(ports), 1)))
        assert (found.data_ranges, found.inner_ranges) == (data, inner)
        assert set(found.ports) == {9093, 9901, *(port for first, last in (*data, *inner) for port in range(first, last + 1))}
