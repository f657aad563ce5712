import os
from pathlib import Path

import pytest

from control.doctor.permissions import look, secret_files
from control.doctor.surroundings import Surroundings
from proxy.config.model import AdminConfig
from proxy.config.sasl import ListenerSasl
from proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from proxy.config.upstream_sasl import UpstreamSasl
from tests.fakes.surroundings import around, config_of, one

STATUS = "Name:\tframegate\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{held}\nNoNewPrivs:\t{no_new}\n"


def process(uid: int = 10001, held: str = "0000000000000000", no_new: int = 1) -> dict[str, str]:
    return {"proc/self/status": STATUS.format(uid=uid, held=held, no_new=no_new)}


def test_every_file_with_a_secret_is_found_and_no_other() -> None:
    tls = ListenerTls(certificate="/c", key="/k", client_ca="/ca", certificates=(NamedCertificate(names=("b",), certificate="/c2", key="/k2"),))
    sasl = ListenerSasl(mechanisms=("PLAIN",), users="/users")
    config = config_of(
        listener={"tls": tls, "sasl": sasl},
        upstream={"tls": UpstreamTls(certificate="/c3", key="/k3", ca="/ca"), "sasl": UpstreamSasl(mechanism="PLAIN", user="me", password_file="/p")},
    )
    assert dict(secret_files(config)) == {
        "listeners[0].tls.key": "/k",
        "listeners[0].tls.certificates[0].key": "/k2",
        "listeners[0].sasl.users": "/users",
        "upstreams[0].tls.key": "/k3",
        "upstreams[0].sasl.password_file": "/p",
    }


@pytest.mark.parametrize(
    ("mode", "level"), [(0o600, "ok"), (0o640, "ok"), (0o440, "ok"), (0o644, "warning"), (0o602, "warning"), (0o604, "warning"), (0o660, "ok")]
)
def test_a_key_that_everybody_may_read_or_write_is_told(tmp_path: Path, mode: int, level: str) -> None:
    key = tmp_path / "tls.key"
    key.write_text("the secret")
    key.chmod(mode)
    config = config_of(listener={"tls": ListenerTls(certificate="/c", key=str(key))})
    found = one(look(around(tmp_path, process(), config=config)), "tls.key")
    assert (found.level, found.figures["mode"]) == (level, f"{mode:04o}")
    assert "the secret" not in str(found)


@pytest.mark.parametrize(("mode", "level"), [(0o440, "ok"), (0o444, "ok"), (0o446, "warning"), (0o666, "warning")])
def test_in_a_pod_a_secret_is_for_all_of_its_container_to_read_and_for_nobody_to_write(tmp_path: Path, mode: int, level: str) -> None:
    key = tmp_path / "tls.key"
    key.write_text("x")
    key.chmod(mode)
    config = config_of(listener={"tls": ListenerTls(certificate="/c", key=str(key))})
    surroundings = around(tmp_path, process(), config=config, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert one(look(surroundings), "tls.key").level == level


def test_a_key_behind_links_is_looked_at_where_it_lies(tmp_path: Path) -> None:
    """As a Secret is mounted: the links have the mode 0777."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "tls.key").write_text("x")
    (tmp_path / "..1" / "tls.key").chmod(0o440)
    (tmp_path / "tls.key").symlink_to("..1/tls.key")
    config = config_of(listener={"tls": ListenerTls(certificate="/c", key=str(tmp_path / "tls.key"))})
    assert one(look(around(tmp_path, process(), config=config)), "tls.key").level == "ok"
    (tmp_path / "..1" / "tls.key").unlink()
    assert one(look(around(tmp_path, process(), config=config)), "tls.key").level == "fault"


def test_the_folder_of_the_socket_is_shown(tmp_path: Path) -> None:
    config = config_of(admin=AdminConfig(address=f"unix:{tmp_path}/admin.sock"))
    found = one(look(around(tmp_path, process(), config=config)), "admin socket")
    assert (found.level, found.figures) == ("ok", {"mode": "0700"})


def test_a_folder_of_another_user_is_told_and_one_that_is_not_there_not_known(tmp_path: Path) -> None:
    config = config_of(admin=AdminConfig(address=f"unix:{tmp_path}/run/admin.sock"))
    assert one(look(around(tmp_path, process(), config=config)), "admin socket").level == "unknown"
    if os.geteuid() != 0:
        pytest.skip("only root gives a folder away")
    (tmp_path / "run").mkdir(mode=0o755)
    os.chown(tmp_path / "run", 65534, 65534)
    assert one(look(around(tmp_path, process(), config=config)), "admin socket").level == "warning"


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
