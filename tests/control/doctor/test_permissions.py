import ctypes
import os
from pathlib import Path

import pytest

from framegate.control.doctor.permissions import BESIDE_DRAIN_S, look, look_at_pod
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.kubernetes.sidecar import PRE_STOP_S, TAP_S
from framegate.proxy.config.model import DrainConfig
from framegate.proxy.config.tls import ListenerTls
from tests.fakes.surroundings import around, config_of, levels, one

STATUS = "Name:\tframegate\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{held}\nNoNewPrivs:\t{no_new}\n"


def process(uid: int = 10001, held: str = "0000000000000000", no_new: int = 1) -> dict[str, str]:
    return {"proc/self/status": STATUS.format(uid=uid, held=held, no_new=no_new)}


@pytest.mark.parametrize(("uid", "level"), [(0, "warning"), (1, "ok")])
def test_root_is_told(tmp_path: Path, uid: int, level: str) -> None:
    assert one(look(around(tmp_path, process(uid=uid))), "user").level == level


@pytest.mark.parametrize(
    ("held", "container", "level"),
    [
        ("0000000000000000", True, "ok"),
        ("0000000000000400", True, "ok"),  # CAP_NET_BIND_SERVICE
        ("0000000000000401", True, "warning"),
        ("000001ffffffffff", False, "ok"),
    ],
)
def test_rights_of_a_container_are_to_be_dropped(tmp_path: Path, held: str, container: bool, level: str) -> None:
    files = {**process(held=held), **({".dockerenv": ""} if container else {})}
    assert one(look(around(tmp_path, files)), "capabilities").level == level


@pytest.mark.parametrize(("no_new", "subjects"), [(0, 1), (1, 0)])
def test_a_container_in_which_programs_may_gain_rights_is_told(tmp_path: Path, no_new: int, subjects: int) -> None:
    found = [item for item in look(around(tmp_path, {**process(no_new=no_new), ".dockerenv": ""})) if item.subject == "new privileges"]
    assert len(found) == subjects


def test_rights_that_cannot_be_seen_are_not_known(tmp_path: Path) -> None:
    assert one(look(around(tmp_path)), "capabilities").level == "unknown"


def test_a_writable_root_is_told_in_a_container_only(tmp_path: Path) -> None:
    assert one(look(around(tmp_path, process())), "root file system").level == "ok"
    assert one(look(around(tmp_path, {**process(), ".dockerenv": ""})), "root file system").level == "warning"
    read_only = [path for path in ("/proc", "/sys") if os.statvfs(path).f_flag & os.ST_RDONLY]
    for path in read_only:
        assert one(look(Surroundings(root=Path(path))), "root file system").found == "is read-only"


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
TLS = {"tls": ListenerTls(certificate="/tls/tls.crt", key="/tls/tls.key")}
ROOT = "1 0 0:1 / / rw - overlay overlay rw\n"
MS_BIND = 4096
MNT_DETACH = 2


def test_doctor_and_inject_ask_for_the_same_grace_period() -> None:
    assert BESIDE_DRAIN_S == PRE_STOP_S + TAP_S


def test_outside_a_pod_there_is_none(tmp_path: Path) -> None:
    assert [item.found for item in look_at_pod(around(tmp_path))] == ["this is none"]


@pytest.mark.parametrize(("drain_ms", "least"), [(30_000, 42), (30_001, 43), (0, 12)])
def test_the_grace_period_cannot_be_read_and_what_must_hold_is_said(tmp_path: Path, drain_ms: int, least: int) -> None:
    config = config_of(drain=DrainConfig(timeout_ms=drain_ms))
    found = one(look_at_pod(around(tmp_path, {"proc/self/mountinfo": ROOT}, config=config, environment=POD)), "terminationGracePeriodSeconds")
    assert (found.level, found.figures["least_s"], f"set it to {least} or more" in found.advice) == ("unknown", least, True)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("2 1 0:5 / /tls ro - tmpfs tmpfs rw\n", 0),  # a Secret, as it should be
        ("2 1 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~configmap/c /tls ro - ext4 /dev/a rw\n", 0),
        ("2 1 0:5 /..2026_11_23_07_00_00.123456789/tls.crt /tls/tls.crt ro - tmpfs tmpfs rw\n", 1),
        ("2 1 8:1 /var/lib/kubelet/pods/u/volume-subpaths/tls/framegate/0 /tls/tls.crt ro - ext4 /dev/a rw\n", 1),
        ("2 1 0:5 /..2026_11_23_07_00_00.123456789/folder /tls ro - tmpfs tmpfs rw\n", 2),  # a folder of a volume by subPath: both files
        ("2 1 8:1 /home/me/tls.crt /tls/tls.crt ro - ext4 /dev/a rw\n", 1),  # docker --volume file:file
    ],
)
def test_what_is_never_renewed_is_found_by_its_mount(tmp_path: Path, lines: str, told: int) -> None:
    found = list(look_at_pod(around(tmp_path, {"proc/self/mountinfo": ROOT + lines}, config=config_of(listener=TLS), environment=POD)))
    warned = [item for item in found if item.level == "warning"]
    assert len(warned) == told
    assert all("folder" in item.advice for item in warned)
    assert any("2 files, which can be replaced" in item.found for item in found) == (told == 0)


def test_mounts_that_cannot_be_read_are_not_known(tmp_path: Path) -> None:
    assert one(look_at_pod(around(tmp_path, config=config_of(listener=TLS))), "mounts").level == "unknown"


def test_a_real_file_mounted_alone_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.crt").write_text("x")
    (tmp_path / "tls.crt").write_text("x")
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = (os.fsencode(tmp_path / name) for name in ("new.crt", "tls.crt"))
    if libc.mount(source, target, None, ctypes.c_ulong(MS_BIND), None) != 0:
        pytest.skip("nothing can be mounted here")
    try:
        config = config_of(listener={"tls": ListenerTls(certificate=str(tmp_path / "tls.crt"), key=str(tmp_path / "new.crt"))})
        found = list(look_at_pod(Surroundings(config=config)))
    finally:
        assert libc.umount2(target, MNT_DETACH) == 0
    assert [(item.subject, item.level) for item in found if item.level != "ok"] == [(str(tmp_path / "tls.crt"), "warning")]
    assert levels(look_at_pod(Surroundings(config=config))) == ["ok", "ok"]
