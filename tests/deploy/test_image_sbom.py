"""The bill of materials: each package by the name under which vulnerabilities are published, the same text each time."""

import json
from pathlib import Path

import pytest

from tests.fakes import deploying

image_sbom = deploying.module("image_sbom")


def package(environment: Path, name: str, version: str, licence: str = "") -> None:
    folder = environment / "lib" / "python3.13" / "site-packages" / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    line = f"License-Expression: {licence}\n" if licence else ""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{line}")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package(tmp_path, "framegate", "0.1.0", "Apache-2.0")
    package(tmp_path, "Ruamel.Yaml", "1.0+local", "MIT")
    package(tmp_path, "zzz", "2")
    debian = [image_sbom.debian_component("libssl3t64:amd64", "3.5.7-1~deb13u2", "amd64", "openssl", "3.5.7-1~deb13u2")]
    monkeypatch.setattr(image_sbom, "debian_components", lambda names: debian if names else [])
    return tmp_path


def test_a_debian_package_names_its_source_which_notices_are_about() -> None:
    found = image_sbom.debian_component("libssl3t64:amd64", "1:3.5", "amd64", "openssl", "3.5")
    assert found["name"] == "libssl3t64"
    assert found["purl"] == "pkg:deb/debian/libssl3t64@1%3A3.5?arch=amd64&distro=debian-13&upstream=openssl%403.5"


def test_everything_is_in_it_once_and_framegate_is_what_it_is_about(environment: Path) -> None:
    bill = json.loads(image_sbom.document(environment, ["libssl3t64"], 0))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/framegate@0.1.0"
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert [component["name"] for component in bill["components"]] == ["ruamel-yaml", "zzz", "libssl3t64"]
    assert bill["components"][0]["purl"] == "pkg:pypi/ruamel-yaml@1.0%2Blocal"
    assert bill["components"][0]["licenses"] == [{"expression": "MIT"}]
    assert "licenses" not in bill["components"][1]


def test_the_same_packages_give_the_same_text_and_others_another_number(environment: Path) -> None:
    one = image_sbom.document(environment, ["libssl3t64"], 0)
    assert image_sbom.document(environment, ["libssl3t64"], 0) == one
    assert json.loads(image_sbom.document(environment, [], 0))["serialNumber"] != json.loads(one)["serialNumber"]


def test_who_owns_a_file_is_read_from_what_dpkg_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = "diversion by base from: /x\nlibc6:amd64, libc6-dev: /usr/lib\nzlib1g:amd64: /usr/lib/libz.so.1\npython3.13: /usr/bin/python3.13\n"
    deploying.program(tmp_path / "bin", "dpkg-query", f"printf '{told}'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert image_sbom.owners([Path("/usr/lib")]) == {"libc6", "libc6-dev", "zlib1g", "python3.13"}
