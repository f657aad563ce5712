"""`make image`: the base, what of this machine gets into a build and what not, the steps, and how each can fail. The engines here are scripts."""

import base64
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.deploy import test_image_archive as archives
from tests.fakes import deploying

ROOT = Path(__file__).resolve().parents[2]


class Engine:
    """An engine that has some images, and writes down what it is asked."""

    def __init__(self, *images: str) -> None:
        self.images = {name: f"id of {name}" for name in images}
        self.removed: list[str] = []

    def has(self, image: str) -> bool:
        return image in self.images

    def image_id(self, image: str) -> str:
        return self.images.get(image, "")

    def remove(self, image: str) -> None:
        self.removed.append(image)

    def pull_command(self, image: str) -> list[str]:
        return ["pull", image]

    def save_command(self, image: str, archive: Path) -> list[str]:
        return ["save", image, str(archive)]

    def build_command(self, order: object, containerfile: Path, context: Path) -> list[str]:
        return ["build", order.image, "fresh" if order.fresh else ""]  # type: ignore[attr-defined]


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = deploying.module("image")
    monkeypatch.setattr(module.environment, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "cache" / "image")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    module.FOLDER.mkdir(parents=True)
    return module


@pytest.fixture
def ran(image: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run; none of them runs."""
    commands: list[list[str]] = []
    monkeypatch.setattr(image.environment, "run_logged", lambda command, *_words, **_more: commands.append(command) or image.environment.code)
    monkeypatch.setattr(image.environment, "run_or_stop", lambda command, *_words, **_more: commands.append(command) or "")
    monkeypatch.setattr(image.environment, "code", 0, raising=False)
    monkeypatch.setattr(image.environment, "provide", lambda _wanted: None)
    return commands


# The base


def test_without_a_registry_it_is_made_from_packages(image: ModuleType, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image.environment, "code", 124)
    assert image.find_base(Engine(), "", "", fresh=False) == image.MADE_BASE
    assert [command[0] for command in ran] == ["timeout", "mmdebstrap", "build"]
    assert ran[1][1:4] == ["--variant=apt", f"--customize-hook={image.NO_TRACES}", "trixie"]
    assert "SOURCE_DATE_EPOCH" not in os.environ
    assert not (image.FOLDER / "base").exists()


# What of this machine gets into a build


def test_settings_go_into_a_build_as_secrets_and_are_gone_afterwards(image: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("certificate")
    told = f"global.cert='{tmp_path}/ca'\nglobal.index-url='https://user:word@index.example/simple'\n"
    monkeypatch.setattr(image, "said", lambda _command: told)
    build = image.secrets()
    files, words = build.__enter__()
    assert {name: path.read_text() for name, path in files.items()} == {
        "ca.crt": "certificate",
        "pip.conf": "[global]\nindex-url = https://user:word@index.example/simple\ncert = /run/secrets/ca.crt\n",
    }
    assert words == [str(image.environment.ROOT).encode(), b"index.example"]
    assert (image.FOLDER / "secrets").stat().st_mode & 0o077 == 0
    assert not build.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not (image.FOLDER / "secrets").exists()


# The archive, the rules, the second build


def order(image: ModuleType) -> object:
    return image.Order("framegate", "localhost/framegate:1", {"VERSION": "1"}, {}, archives.EPOCH)


@pytest.fixture
def saves(image: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that were saved; what each holds is in its name: one whose name ends on -again may be told to differ."""
    saved: list[str] = []

    def run(command: list[str], *_words: object, **_more: object) -> str:
        if command[0] == "save":
            saved.append(command[1])
            more: archives.Members = {"etc/more": (b"", 0o644, 0)} if command[1].endswith("-again") and image.differs else {}
            archives.archive(Path(command[2]), archives.layer({**archives.GOOD, **more}))
        return ""

    monkeypatch.setattr(image, "differs", False, raising=False)
    monkeypatch.setattr(image.environment, "run_or_stop", run)
    return saved


def test_an_archive_is_written_only_when_the_image_is_another(image: ModuleType, saves: list[str]) -> None:
    engine = Engine("localhost/framegate:1")
    for _ in range(2):
        archive, _found = image.archived(engine, "localhost/framegate:1", "framegate", [])
    assert saves == ["localhost/framegate:1"]
    assert archive.name == "framegate-1.tar"
    assert archive.with_suffix(".cdx.json").read_text() == "{}"
    engine.images["localhost/framegate:1"] = "another"
    image.archived(engine, "localhost/framegate:1", "framegate", [])
    assert len(saves) == 2


def test_a_broken_rule_ends_it_with_the_rule(image: ModuleType, saves: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, found = image.archived(Engine(), "localhost/framegate:1", "framegate", [])
    found.config["config"]["User"] = ""
    with pytest.raises(SystemExit) as stopped:
        image.checked(Engine(), order(image), found, [], twice=False)
    assert stopped.value.code == 1
    assert "it runs as root" in capsys.readouterr().err
    assert saves


# In a process of its own


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which the only engine is a script."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "deploy", root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_an_archive_and_its_bill_of_materials_are_signed_with_a_key(image: ModuleType, tmp_path: Path) -> None:
    archive, key, public = tmp_path / "made" / "framegate-1.tar", tmp_path / "key.pem", tmp_path / "public.pem"
    archive.parent.mkdir()
    archive.write_bytes(b"archive")
    archive.with_suffix(".cdx.json").write_bytes(b"{}")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)], check=True)
    subprocess.run(["openssl", "ec", "-in", str(key), "-pubout", "-out", str(public)], check=True, capture_output=True)
    assert image.keep(archive, tmp_path / "dist", key) == tmp_path / "dist" / "framegate-1.tar"
    for name in ("framegate-1.tar", "framegate-1.cdx.json"):
        raw = tmp_path / "raw"
        raw.write_bytes(base64.b64decode((tmp_path / "dist" / f"{name}.sig").read_bytes()))
        subprocess.run(["openssl", "dgst", "-sha256", "-verify", str(public), "-signature", str(raw), str(tmp_path / "dist" / name)], check=True)
    for words in (["--key", str(key)], ["--archive", str(tmp_path), "--key", str(tmp_path / "none")]):
        with pytest.raises(SystemExit) as stopped:
            image.main(words)
        assert stopped.value.code == 2
