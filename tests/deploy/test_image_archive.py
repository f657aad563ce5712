"""What is read from an image's archive, and that each of an image's rules can be broken."""

import copy
import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import deploying

image_archive = deploying.module("image_archive")
EPOCH = 1000
CONFIG = {"config": {"User": "10001:10001", "Labels": {"org.opencontainers.image.version": "1"}}}
Members = dict[str, tuple[bytes, int, int]]
FOLDERS: Members = {"run/framegate": (b"", 0o40700, 10001), "var/lib/framegate/tap": (b"", 0o40700, 10001)}
GOOD: Members = {**FOLDERS, "usr/bin/python": (b"\x7fELF", 0o755, 0), image_archive.SBOM: (b"{}", 0o644, 0)}


def layer(members: Members, time: int = EPOCH) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, (content, mode, owner) in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.uid, member.gid, member.mtime = len(content), mode & 0o7777, owner, owner, time
            member.type = tarfile.DIRTYPE if mode & 0o40000 else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def archive(path: Path, *layers: bytes, config: dict[str, Any] = CONFIG, manifests: int = 1) -> Path:
    """An archive of OCI's layout."""
    blobs = [json.dumps(config).encode(), *layers]
    digests = ["sha256:" + hashlib.sha256(blob).hexdigest() for blob in blobs]
    described = [{"digest": digest, "size": len(blob)} for digest, blob in zip(digests, blobs, strict=True)]
    manifest = json.dumps({"config": described[0], "layers": described[1:]}).encode()
    digests.append("sha256:" + hashlib.sha256(manifest).hexdigest())
    index = json.dumps({"manifests": [{"digest": digests[-1]}] * manifests}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in [
            ("index.json", index),
            *(("blobs/" + d.replace(":", "/"), b) for d, b in zip(digests, [*blobs, manifest], strict=True)),
        ]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def faults(path: Path, members: Members, target: str = "framegate", time: int = EPOCH, config: dict[str, Any] = CONFIG) -> list[str]:
    image = image_archive.read(archive(path / "image.tar", layer(members, time), config=config), [b"index.example"])
    return list(image_archive.faults(image, target, EPOCH))


def test_sizes_are_those_of_the_layers_packed_and_unpacked(tmp_path: Path) -> None:
    plain = layer({"a": (b"a" * 5000, 0o644, 0)})
    packed = gzip.compress(layer({"b": (b"b" * 5000, 0o644, 0)}))
    image = image_archive.read(archive(tmp_path / "x.tar", plain, packed))
    assert image.compressed == len(plain) + len(packed)
    assert 2 * 5000 <= image.size <= 2 * len(plain)
    assert set(image.entries) == {"a", "b"}


def test_a_later_layer_replaces_what_an_earlier_one_held(tmp_path: Path) -> None:
    image = image_archive.read(archive(tmp_path / "x.tar", layer({"a": (b"1", 0o644, 0)}), layer({"a": (b"2", 0o600, 0)})))
    assert image.entries["a"].content == hashlib.sha256(b"2").hexdigest()
    assert image.entries["a"].mode == 0o600


def test_a_good_image_breaks_no_rule(tmp_path: Path) -> None:
    assert faults(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"usr/bin/sh": (b"", 0o755, 0)}, "/usr/bin/sh is in an image that needs no shell"),
        ({"usr/sbin/dpkg": (b"", 0o755, 0)}, "/usr/sbin/dpkg is in an image"),
        ({"etc/open": (b"", 0o666, 0)}, "/etc/open is writable by every user"),
        ({"usr/bin/su": (b"", 0o4755, 0)}, "/usr/bin/su has the bit setuid"),
        ({"run/framegate": (b"", 0o40755, 10001)}, "/run/framegate is not a folder of 10001"),
        ({"run/framegate": (b"", 0o40700, 0)}, "/run/framegate is not a folder of 10001"),
        ({"etc/pip.conf": (b"https://index.example/x", 0o644, 0)}, "etc/pip.conf: index.example"),
    ],
)
def test_each_rule_of_a_file_can_be_broken(tmp_path: Path, broken: Members, rule: str) -> None:
    (told,) = faults(tmp_path, {**GOOD, **broken})
    assert rule in told


@pytest.mark.parametrize(("time", "allowed"), [(EPOCH - 1, True), (EPOCH, True), (EPOCH + 1, False)])
def test_nothing_bears_a_later_time_than_the_one_that_was_set(tmp_path: Path, time: int, allowed: bool) -> None:
    assert (faults(tmp_path, GOOD, time=time) == []) is allowed


def test_all_broken_rules_are_reported_at_once(tmp_path: Path) -> None:
    members = {name: member for name, member in GOOD.items() if name != image_archive.SBOM}
    told = faults(tmp_path, members, config={"config": {}})
    assert ["root" in told[0], "version" in told[1], "bill" in told[2], len(told)] == [True, True, True, 3]


@pytest.mark.parametrize(("over", "allowed"), [(-1, True), (0, True), (1, False)])
def test_the_sidecar_has_110_mib_and_no_more(tmp_path: Path, over: int, allowed: bool) -> None:
    image = image_archive.read(archive(tmp_path / "x.tar", layer(GOOD), config=CONFIG))
    image.size = (110 << 20) + over
    assert (list(image_archive.faults(image, "framegate", EPOCH)) == []) is allowed
    assert list(image_archive.faults(image, "spark", EPOCH)) == []


def test_two_images_differ_by_content_owner_mode_and_what_one_has_alone(tmp_path: Path) -> None:
    one = image_archive.read(archive(tmp_path / "x.tar", layer(GOOD)))
    two = copy.deepcopy(one)
    assert image_archive.differences(one, two) == []
    two.entries["usr/bin/python"] = replace(two.entries["usr/bin/python"], mode=0o700)
    del two.entries["run/framegate"]
    two.config = {}
    assert image_archive.differences(one, two) == ["(configuration)", "run/framegate", "usr/bin/python"]
