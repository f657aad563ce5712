"""The command `inject`: what it reads, where it writes, what it says and how it ends."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from framegate.control.cli.commands import main
from framegate.control.kubernetes.kafka_sidecar import kafka_configuration

POD = """\
# a pod
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: app   # it
"""
CONFIGURATION = """\
node: edge
health: {address: "0.0.0.0:9901"}
memory_pool: {size: 64MiB}
listeners:
  - {name: a, address: "0.0.0.0:7000", upstream: u, max_receive_size: 1MiB, limits: {connections: 100},
     tls: {certificate: /tls/tls.crt, key: /tls/tls.key}}
upstreams: [{name: u, endpoints: ["127.0.0.1:9190"]}]
tap: {directory: /tap, budget: 100MiB, segment_size: 10MiB}
telemetry: {prometheus: {address: "0.0.0.0:9464"}}
drain: {timeout: 10s}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "framegate.yaml").write_text(CONFIGURATION)
    return tmp_path


def run(*words: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["inject", *map(str, words)], input=given)


def data(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def sidecar(text: str) -> dict[str, Any]:
    (container,) = data(text)[0]["spec"]["initContainers"]
    return dict(container)


def test_a_file_comes_out_with_framegate_and_goes_back(folder: Path) -> None:
    done = run("-f", folder / "pod.yaml")
    assert (done.exit_code, done.stderr) == (0, "framegate: added to Pod a\n")
    assert sidecar(done.stdout)["name"] == "framegate"
    again = run("-f", "-", given=done.stdout)
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    back = run("-f", "-", "--remove", given=done.stdout)
    assert (back.exit_code, back.stdout, back.stderr) == (0, POD, "framegate: removed from Pod a\n")
    nothing = run("-f", "-", "--remove", given=POD)
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, POD, "framegate: removed from nothing: no object has framegate\n")


def test_bytes_pass_as_they_are(folder: Path) -> None:
    text = POD.replace("\n", "\r\n").encode()
    done = run("-f", "-", given=text)
    assert done.stdout_bytes.count(b"\n") == done.stdout_bytes.count(b"\r\n")
    assert run("-f", "-", "--remove", given=done.stdout_bytes).stdout_bytes == text


def test_what_was_asked_for_comes_along(folder: Path) -> None:
    words = (
        "--image r/framegate:2 --memory 1GiB --cpu 500m --tls-secret t --config-map c --secret s=/sasl --certificate ClusterIssuer/ca --dns-name x"
    )
    more = "--env-secret e --network-policy --pod-monitor --disruption-budget --tap-claim tap --tap-claim-size 1GiB"
    labelled = POD.replace("{name: a}", "{name: a, labels: {app: a}}")
    (folder / "pod.yaml").write_text(labelled)
    done = run("-f", folder / "pod.yaml", "--config", folder / "framegate.yaml", *words.split(), *more.split())
    assert done.exit_code == 0, done.stderr
    assert "framegate: Pod a: gets no PodDisruptionBudget, " in done.stderr
    found = {item["kind"]: item for item in data(done.stdout)}
    assert list(found) == ["Pod", "ConfigMap", "Certificate", "PersistentVolumeClaim", "NetworkPolicy", "PodMonitor"]
    (name,) = [volume["configMap"]["name"] for volume in found["Pod"]["spec"]["volumes"] if "configMap" in volume]
    assert found["ConfigMap"]["metadata"]["name"] == name
    assert name.startswith("c-a-")
    assert (found["Certificate"]["metadata"]["name"], found["Certificate"]["spec"]["dnsNames"]) == ("a-pod-t", ["x"])
    assert found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "1Gi"
    container = sidecar(done.stdout)
    assert (container["image"], container["envFrom"]) == ("r/framegate:2", [{"secretRef": {"name": "e"}}])
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi"}
    assert run("-f", "-", "--remove", given=done.stdout).stdout == labelled


def test_kafka_stands_for_a_configuration_in_front_of_the_cluster(folder: Path) -> None:
    done = run("-f", folder / "pod.yaml", "--kafka", "kafka-1:9092,kafka-2:9092")
    assert (done.exit_code, done.stderr) == (0, "framegate: added to Pod a\n")
    pod, config_map = data(done.stdout)
    text = config_map["data"]["framegate.yaml"]
    assert text == kafka_configuration(("kafka-1:9092", "kafka-2:9092"), "# Written by `framegate inject --kafka`.")
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == config_map["metadata"]["name"]
    assert [port["containerPort"] for port in sidecar(done.stdout)["ports"]] == [9464, 9901]
    assert run("-f", "-", "--remove", given=done.stdout).stdout == POD
    taken = run("-f", "-", "--kafka", "kafka:9092", given=POD + "    ports: [{containerPort: 9150}]\n")
    assert (taken.exit_code, "has port 9150, on which framegate listens" in taken.stderr) == (2, True)
    both = run("-f", folder / "pod.yaml", "--kafka", "kafka:9092", "--config", folder / "framegate.yaml")
    assert (both.exit_code, "--kafka cannot be used with --config" in both.stderr) == (2, True)
    claimed = run("-f", folder / "pod.yaml", "--kafka", "kafka:9092", "--tap-claim", "c")
    assert (claimed.exit_code, "framegate: --kafka: --tap-claim has no effect" in claimed.stderr) == (2, True)


def test_a_container_that_is_too_small_for_the_configuration_is_a_warning(folder: Path) -> None:
    words = ("-f", folder / "pod.yaml", "--config", folder / "framegate.yaml", "--memory")
    small = run(*words, "128MiB")
    assert small.exit_code == 0
    assert "framegate: warning: " in small.stderr
    assert "memory_pool.size does not fit into the container's 128MiB" in small.stderr
    assert "warning" not in run(*words, "512MiB").stderr


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (("0.0.0.0:9901", "127.0.0.1:9901"), "", "which the kubelet cannot reach"),
        (("node: edge", "nodes: edge"), "", "line 1: nodes"),
        (("upstream: u", "upstream: v"), "", "is not the name of an upstream"),
        (("key: /tls/tls.key", "key: /keys/tls.key"), "", "is a file in /keys, which is in no volume; add --secret NAME=/keys"),
        (('telemetry: {prometheus: {address: "0.0.0.0:9464"}}', "telemetry: {}"), "--pod-monitor", "--pod-monitor needs telemetry.prometheus"),
        (("tap: {directory: /tap, budget: 100MiB, segment_size: 10MiB}\n", ""), "--tap-claim c", "--tap-claim has no effect"),
        (("", ""), "--tap-claim c --tap-claim-size 135MiB", "--tap-claim-size is less than 136MiB"),
        (("directory: /tap", "directory: /tls"), "", "certificates and keys and tap.directory are both in /tls"),
        (("directory: /tap", "directory: /etc/framegate"), "", "the ConfigMap and tap.directory are both in /etc/framegate"),
        (("", ""), "--secret a=/run/framegate", "admin.address and --secret a are both in /run/framegate"),
        (("", ""), "--secret a=/x --secret a=/x", "--secret a and --secret a are both in /x"),
        (("tls: {certificate: /tls/tls.crt, key: /tls/tls.key}", "tls: null"), "--certificate ca", "--certificate has no effect"),
    ],
)
def test_a_configuration_that_does_not_do_is_refused(folder: Path, change: tuple[str, str], words: str, said: str) -> None:
    path = folder / "framegate.yaml"
    path.write_text(CONFIGURATION.replace(*change))
    done = run("-f", folder / "pod.yaml", "--config", path, *words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert str(path) in done.stderr


def test_a_file_that_secrets_of_certificates_do_not_hold_is_told(folder: Path) -> None:
    path = folder / "framegate.yaml"
    words = ("-f", folder / "pod.yaml", "--config", path)
    assert "warning" not in run(*words).stderr
    path.write_text(CONFIGURATION.replace("/tls/tls.crt", "/tls/server.pem"))
    done = run(*words)
    assert done.exit_code == 0
    assert "listeners[0].tls.certificate: the Secret framegate-tls must also have server.pem, besides" in done.stderr
    refused = run(*words, "--certificate", "ca")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "listeners[0].tls.certificate is server.pem, but cert-manager's Secret has only tls.crt, tls.key, ca.crt" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--cpu 0", "--cpu x", "--cpu 0.0001", "--cpu 1.5m", "--memory x", "--secret a", "--secret A=/x", "--secret a=x", "--certificate Other/x",
        "--certificate X", "--tap-claim A", "--tls-secret -", "--probes tcp", "--in-place --output x", "--tap-claim-size 1GiB", "-f missing.yaml",
        "--env-secret E",
        "--no-fs-group", "--memory 47MiB", "--image a:b@sha256:0", "--image -a", "--dns-name not_a_name", "--dns-name a..b", "--dns-name *.*.b",
        "--secret a=/", "--secret a=//", "--secret a=/opt/framegate/", "--secret a=/usr/share", "--secret a=/x/../etc", "--secret a=/proc/self",
    ],
)  # fmt: skip
def test_wrong_usage_is_said_before_anything_is_read(folder: Path, words: str) -> None:
    done = run("-f", folder / "pod.yaml", *words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Error: " in done.stderr


def test_every_fault_of_every_file_is_named_and_nothing_is_written(folder: Path) -> None:
    bad = POD + "  hostNetwork: true\n"
    (folder / "bad.yaml").write_text(bad)
    (folder / "broken.yaml").write_text("a: [\n")
    done = run("-f", folder / "pod.yaml", "-f", folder / "bad.yaml", "-f", folder / "broken.yaml", "--in-place")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{folder / 'bad.yaml'}: line 8: Pod a: has hostNetwork" in done.stderr
    assert f"{folder / 'broken.yaml'}: line 2: is not YAML" in done.stderr
    assert "2 faults, nothing was written" in done.stderr
    assert (folder / "pod.yaml").read_text() == POD


def test_in_place_writes_all_files_or_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "pod.yaml").write_text(POD)
    words = ("-f", folder / "pod.yaml", "-f", other / "pod.yaml", "--in-place")

    def refused(*_: object, dir: Path, **__: object) -> tuple[int, str]:
        if dir == other:
            raise OSError(errno.EROFS, "Read-only file system")
        return tempfile_of(dir=dir)

    tempfile_of = tempfile.mkstemp
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkstemp", refused)
        done = run(*words)
    assert (done.exit_code, done.stderr) == (1, f"framegate: {other / 'pod.yaml'} cannot be written: Read-only file system; nothing was written\n")
    assert (folder / "pod.yaml").read_text() == POD
    assert sorted(item.name for item in folder.iterdir()) == ["framegate.yaml", "other", "pod.yaml"]
    replace = os.replace

    def second_fails(source: str, target: Path) -> None:
        if target == other / "pod.yaml":
            raise OSError(errno.EBUSY, "Device or resource busy")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", second_fails)
        done = run(*words)
    assert done.exit_code == 1
    assert f"{other / 'pod.yaml'} cannot be written: Device or resource busy; these were written: {folder / 'pod.yaml'}" in done.stderr
    assert os.listdir(other) == ["pod.yaml"]
    assert run(*words).exit_code == 0


def test_a_stream_that_is_closed_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for stream, words, said in (
        ("stdin", ["-f", "-"], "standard input is closed"),
        ("stdout", ["-f", str(folder / "pod.yaml")], "standard output is closed; use --output or --in-place"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(sys, stream, None)
            with pytest.raises(SystemExit) as caught:
                main.main(["inject", *words])
        assert caught.value.code == 1
        assert capsys.readouterr().err == f"framegate: {said}\n"


@pytest.mark.parametrize(("cpu", "warned"), [("99m", True), ("100m", False), ("30m", True)])
def test_little_of_a_cpu_is_a_warning(folder: Path, cpu: str, warned: bool) -> None:
    done = run("-f", folder / "pod.yaml", "--cpu", cpu)
    assert done.exit_code == 0
    assert (f"warning: --cpu {cpu}: framegate needs" in done.stderr) is warned


def test_a_folder_is_read_in_the_order_of_names_and_comes_out_as_one_stream(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(POD)
    (tmp_path / "a.json").write_text(json.dumps(data(POD.replace("name: a}", "name: j}"))[0]))
    (tmp_path / "c.yml").write_text("kind: Service\napiVersion: v1")
    (tmp_path / "notes.txt").write_text("a: [")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "d.yaml").write_text(POD)
    done = run("-f", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert [item["kind"] + item.get("metadata", {}).get("name", "") for item in data(done.stdout)] == ["Podj", "Poda", "Service"]
    assert done.stderr == "framegate: added to Pod j, Pod a\n"


def test_a_folder_without_manifests_and_a_file_without_pods_are_refused(tmp_path: Path) -> None:
    assert "has no manifest" in run("-f", tmp_path).stderr
    path = tmp_path / "a.yaml"
    path.write_text("kind: Service\n")
    done = run("-f", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no pod to inject" in done.stderr


def test_what_is_no_utf8_is_refused_with_its_line() -> None:
    done = run("-f", "-", given=b"a: 1\nb: \xff\n")
    assert (done.exit_code, "standard input: line 2: is not UTF-8" in done.stderr) == (2, True)


def test_in_place_keeps_the_mode_and_what_a_link_points_to(folder: Path) -> None:
    path = folder / "pod.yaml"
    path.chmod(0o640)
    link = folder / "link.yaml"
    link.symlink_to("pod.yaml")
    assert run("-f", link, "--in-place").exit_code == 0
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sidecar(path.read_text())["name"] == "framegate"
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert run("-f", path, "--in-place").exit_code == 0
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before, "what does not change is not written"
    assert run("-f", path, "--in-place", "--remove").exit_code == 0
    assert path.read_text() == POD
    assert sorted(item.name for item in folder.iterdir()) == ["framegate.yaml", "link.yaml", "pod.yaml"]


def test_a_file_is_written_whole_or_not_at_all(folder: Path) -> None:
    target = folder / "out" / "x.yaml"
    done = run("-f", folder / "pod.yaml", "-o", target)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{target} cannot be written: No such file or directory" in done.stderr
    target.parent.mkdir()
    assert run("-f", folder / "pod.yaml", "-o", target).exit_code == 0
    assert run("-f", target, "--remove").stdout == POD
    assert os.listdir(target.parent) == ["x.yaml"]


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_as_any_program(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "framegate.control.cli", "inject", "-f", str(folder / "pod.yaml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in said) == (141, False)
