"""The root file system of an image: only what is needed, with bytecode that is never checked again, and a bill of materials; the same each time."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import deploying

image_root = deploying.module("image_root")
UNCHECKED_HASH = 0b01


def test_modules_for_tests_drawing_and_installing_are_left_out_and_no_others() -> None:
    unwanted = ["test", "idlelib", "ensurepip", "tkinter", "config-3.13-x86_64-linux-gnu", "_tkinter.cpython-313.so", "_pydecimal.py", "__pycache__"]
    unwanted += ["sqlite3", "_sqlite3.cpython-313.so", "cProfile.py", "_lsprof.cpython-313.so"]
    wanted = ["ssl.py", "asyncio", "xml", "unittest", "decimal.py", "_ssl.cpython-313.so", "configparser.py", "this.py"]
    assert image_root.left_out("", [*unwanted, *wanted]) == set(unwanted)


def test_a_library_that_is_nowhere_ends_the_build() -> None:
    with pytest.raises(image_root.MissingError, match=r"libgone\.so\.1"):
        image_root.libraries("\tlibgone.so.1 => not found\n")


def test_a_link_is_copied_with_what_it_leads_to(tmp_path: Path) -> None:
    there, root = tmp_path / "there", tmp_path / "root"
    there.mkdir()
    (there / "libz.so.1.3").write_text("z")
    (there / "libz.so.1").symlink_to("libz.so.1.3")
    for _ in range(2):
        assert image_root.put(root, there / "libz.so.1") == {there / "libz.so.1.3"}
    copied = root / there.relative_to("/")
    assert os.readlink(copied / "libz.so.1") == "libz.so.1.3"
    assert (copied / "libz.so.1").read_text() == "z"


def test_bytecode_is_never_checked_against_its_source_and_names_it_where_it_will_be(tmp_path: Path) -> None:
    pycs = []
    for build in ("one", "two"):
        source = tmp_path / build / "lib" / "module.py"
        source.parent.mkdir(parents=True)
        source.write_text("WORDS = {'a', 'b'}\n\ndef f():\n    return 1\n")
        os.utime(source, (1, len(build) * ord(build[0])))
        image_root.compile_bytecode(tmp_path / build, [tmp_path / build / "lib"])
        pycs.append(Path(importlib.util.cache_from_source(str(source))).read_bytes())
    assert int.from_bytes(pycs[0][4:8], "little") == UNCHECKED_HASH
    assert b"/lib/module.py" in pycs[0]
    assert str(tmp_path).encode() not in pycs[0]
    assert pycs[0] == pycs[1]


def test_bytecode_takes_the_place_of_its_source_except_of_framegates_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", None)
    for name in ("framegate/own.py", "other/__init__.py", "other/module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("WORDS = __name__\n")
    (tmp_path / "other" / "compiled.py").touch()
    (tmp_path / "other" / "compiled.cpython-313.so").touch()
    image_root.compile_bytecode(tmp_path, [tmp_path])
    image_root.leave_out_sources(tmp_path, tmp_path / "framegate")
    assert {path.name for path in (tmp_path / "other").iterdir()} == {"__init__.pyc", "module.pyc", "compiled.py", "compiled.cpython-313.so"}
    assert {path.name for path in (tmp_path / "framegate").iterdir()} == {"own.py", "__pycache__"}
    words = "from other import module; from framegate import own; print(module.WORDS, own.WORDS)"
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {words}"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("other.module framegate.own\n", "")


def test_a_source_that_cannot_be_compiled_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def\n")
    with pytest.raises(image_root.MissingError, match="compiled"):
        image_root.compile_bytecode(tmp_path, [tmp_path])


def test_of_the_environment_what_runs_is_there_without_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = tmp_path / "opt" / "framegate"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib" / "__pycache__").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to("/usr/bin/python3")
    for name in ("framegate", "activate", "pygmentize"):
        (environment / "bin" / name).touch()
    (environment / "lib" / "pygments" / "lexers").mkdir(parents=True)
    for name in ("__init__.py", "_mapping.py", "fortran.py"):
        (environment / "lib" / "pygments" / "lexers" / name).touch()
    (environment / "lib" / "types.pyi").touch()
    for name in ("cffi", "pycparser", "pycparser-3.12.dist-info", "cffi-2.1.1.dist-info"):
        (environment / "lib" / name).mkdir()
    (environment / "lib" / "_cffi_backend.so").write_bytes(b"\x7fELF")
    (environment / "lib" / "certifi").mkdir()
    (environment / "lib" / "certifi" / "cacert.pem").write_text("authorities")
    (environment / "lib" / "compiled.so").write_bytes(b"\x7fELF")
    deploying.program(tmp_path / "tools", "strip", f'echo "$@" >> {tmp_path}/stripped')
    monkeypatch.setenv("PATH", f"{tmp_path}/tools")
    monkeypatch.setattr(image_root, "ENVIRONMENT", environment)
    root = tmp_path / "root"
    image_root.put_environment(root)
    target = root / environment.relative_to("/")
    assert {path.name for path in (target / "bin").iterdir()} == {"python", "framegate"}
    assert (target / "bin" / "python").is_symlink()
    kept = {"pygments", "lexers", "__init__.py", "_mapping.py", "compiled.so", "certifi", "cacert.pem", "_cffi_backend.so", "cffi-2.1.1.dist-info"}
    assert {path.name for path in (target / "lib").rglob("*")} == kept
    assert (target / "lib" / "certifi" / "cacert.pem").readlink() == image_root.CERTIFICATES
    assert (tmp_path / "stripped").read_text() == "".join(f"--strip-unneeded {target}/lib/{name}.so\n" for name in ("_cffi_backend", "compiled"))


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
    debian = [image_root.debian_component("libssl3t64:amd64", "3.5.7-1~deb13u2", "amd64", "openssl", "3.5.7-1~deb13u2")]
    monkeypatch.setattr(image_root, "debian_components", lambda names: debian if names else [])
    return tmp_path


def test_the_bill_has_every_package_once_and_is_about_framegate(environment: Path) -> None:
    bill = json.loads(image_root.bill_of_materials(environment, ["libssl3t64"], 0))
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/framegate@0.1.0"
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"
    assert [component["name"] for component in bill["components"]] == ["ruamel-yaml", "zzz", "libssl3t64"]
    assert bill["components"][0]["purl"] == "pkg:pypi/ruamel-yaml@1.0%2Blocal"
    assert bill["components"][0]["licenses"] == [{"expression": "MIT"}]
    assert "licenses" not in bill["components"][1]


def test_the_same_packages_give_the_same_text_and_others_another_number(environment: Path) -> None:
    one = image_root.bill_of_materials(environment, ["libssl3t64"], 0)
    assert image_root.bill_of_materials(environment, ["libssl3t64"], 0) == one
    assert json.loads(image_root.bill_of_materials(environment, [], 0))["serialNumber"] != json.loads(one)["serialNumber"]


def test_packages_of_files_are_read_from_dpkg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = "diversion by base from: /x\nlibc6:amd64, libc6-dev: /usr/lib\nzlib1g:amd64: /usr/lib/libz.so.1\npython3.13: /usr/bin/python3.13\n"
    deploying.program(tmp_path / "bin", "dpkg-query", f"printf '{told}'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert image_root.owners([Path("/usr/lib")]) == {"libc6", "libc6-dev", "zlib1g", "python3.13"}
