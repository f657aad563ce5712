import os
from pathlib import Path

import pytest

from framegate.control.doctor.permissions import BESIDE_DRAIN_S, look, look_at_pod
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.kubernetes.sidecar import PRE_STOP_S, TAP_S
from framegate.proxy.config.model import DrainConfig
from framegate.proxy.config.tls import ListenerTls
from tests.fakes.small_disk import bound
from tests.fakes.surroundings import around, config_of, levels, one

STATUS = "Name:\tframegate\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{held:016x}\nNoNewPrivs:\t{no_new}\n"


def process(uid: int = 10001, held: int = 0, no_new: int = 1, *, container: bool = False) -> dict[str, str]:
    return {"proc/self/status": STATUS.format(uid=uid, held=held, no_new=no_new), **({".dockerenv": ""} if container else {})}


def test_rights_that_framegate_does_not_need_are_a_warning(tmp_path: Path) -> None:
    wrong = []
    for number, (files, subject, level) in enumerate(
        (
            (process(uid=0), "user", "warning"),
            (process(uid=1), "user", "ok"),
            (process(container=True), "capabilities", "ok"),
            (process(held=0x400, container=True), "capabilities", "ok"),  # CAP_NET_BIND_SERVICE
            (process(held=0x401, container=True), "capabilities", "warning"),
            (process(held=0x1FFFFFFFFFF), "capabilities", "ok"),
            (process(no_new=0, container=True), "new privileges", "warning"),
            ({".dockerenv": ""}, "capabilities", "unknown"),
            (process(), "root file system", "ok"),
            (process(container=True), "root file system", "warning"),
        )
    ):
        found = one(look(around(tmp_path / str(number), files)), subject)
        wrong += [(files, found)] * (found.level != level)
    assert wrong == []
    assert "new privileges" not in [item.subject for item in look(around(tmp_path / "held", process(container=True)))]
    for path in (path for path in ("/proc", "/sys") if os.statvfs(path).f_flag & os.ST_RDONLY):
        assert one(look(Surroundings(root=Path(path))), "root file system").found == "is read-only"


POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
TLS = {"tls": ListenerTls(certificate="/tls/tls.crt", key="/tls/tls.key")}
ROOT = "1 0 0:1 / / rw - overlay overlay rw\n"


def test_the_grace_period_cannot_be_read_and_the_least_is_shown_as_inject_has_it(tmp_path: Path) -> None:
    assert [item.found for item in look_at_pod(around(tmp_path))] == ["framegate does not run in a pod"]
    assert BESIDE_DRAIN_S == PRE_STOP_S + TAP_S
    for drain_ms, least in ((30_000, 47), (30_001, 48), (0, 17)):
        config = config_of(drain=DrainConfig(timeout_ms=drain_ms))
        found = one(look_at_pod(around(tmp_path, {"proc/self/mountinfo": ROOT}, config=config, environment=POD)), "terminationGracePeriodSeconds")
        assert (found.level, found.figures["least_s"], f"set it to {least} or more" in found.advice) == ("unknown", least, True)


def test_files_that_are_never_renewed_are_found_by_their_mount(tmp_path: Path) -> None:
    for lines, warned in (
        ("2 1 0:5 / /tls ro - tmpfs tmpfs rw\n", 0),  # a Secret, as it should be
        ("2 1 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~configmap/c /tls ro - ext4 /dev/a rw\n", 0),
        ("2 1 0:5 /..2026_11_23_07_00_00.123456789/tls.crt /tls/tls.crt ro - tmpfs tmpfs rw\n", 1),
        ("2 1 8:1 /var/lib/kubelet/pods/u/volume-subpaths/tls/framegate/0 /tls/tls.crt ro - ext4 /dev/a rw\n", 1),
        ("2 1 0:5 /..2026_11_23_07_00_00.123456789/folder /tls ro - tmpfs tmpfs rw\n", 2),  # a folder of a volume by subPath: both files
        ("2 1 8:1 /home/me/tls.crt /tls/tls.crt ro - ext4 /dev/a rw\n", 1),  # docker --volume file:file
    ):
        found = list(look_at_pod(around(tmp_path, {"proc/self/mountinfo": ROOT + lines}, config=config_of(listener=TLS), environment=POD)))
        assert ["folder" in item.advice for item in found if item.level == "warning"] == [True] * warned, lines
        assert any("2 files, which can be replaced" in item.found for item in found) == (warned == 0), lines
    assert one(look_at_pod(around(tmp_path / "none", config=config_of(listener=TLS))), "mounts").level == "unknown"


def test_a_real_file_mounted_alone_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.crt").write_text("x")
    (tmp_path / "tls.crt").write_text("x")
    config = config_of(listener={"tls": ListenerTls(certificate=str(tmp_path / "tls.crt"), key=str(tmp_path / "new.crt"))})
    with bound(tmp_path / "new.crt", tmp_path / "tls.crt") as mounted:
        if not mounted:
            pytest.skip("nothing can be mounted here")
        found = list(look_at_pod(Surroundings(config=config)))
    assert [(item.subject, item.level) for item in found if item.level != "ok"] == [(str(tmp_path / "tls.crt"), "warning")]
    assert levels(look_at_pod(Surroundings(config=config))) == ["ok", "ok"]
