"""The committed stubs are what `proto/` says, and the .proto files keep their own rules."""

import itertools
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.fakes.cases import each_of
from tests.fakes.cli import served
from tests.fakes.deploying import module

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
VERSIONS = re.compile(r"(GRPC_GENERATED_VERSION = |# Protobuf Python Version: )\S+|^    \d+,$", re.MULTILINE)
"""Where a generator writes its own version; a newer one than the committed stubs' must give the same otherwise."""


@pytest.mark.slow
def test_generating_again_gives_the_committed_files(tmp_path: Path) -> None:
    written = module("api_stubs").generate(tmp_path, ROOT / "proto")
    committed = sorted(path.relative_to(ROOT) for path in (ROOT / "control/v1").glob("*_pb2*.py*") if path.suffix in (".py", ".pyi"))
    assert written == committed
    for path in written:
        assert VERSIONS.sub("", (tmp_path / path).read_text()) == VERSIONS.sub("", (ROOT / path).read_text()), path


def buf(*words: str, folder: Path = ROOT / "proto") -> "subprocess.CompletedProcess[str]":
    found = shutil.which("buf") or Path(sysconfig.get_path("scripts")) / "buf"
    return subprocess.run([found, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_the_api_keeps_the_rules_of_buf_and_breaks_nothing_that_was_released() -> None:
    for words in (("lint",), ("format", "--diff", "--exit-code"), ("breaking", "--against", "released.binpb")):
        said = buf(*words)
        assert (said.returncode, said.stdout) == (0, ""), said.stdout + said.stderr


def test_a_field_that_is_gone_or_has_another_number_breaks_the_api(tmp_path: Path) -> None:
    for old, new in (("string listener = 1;", "string listener = 99;"), ("string request_id = 5;", "")):
        folder = tmp_path / str(hash(old))
        shutil.copytree(ROOT / "proto", folder)
        path = folder / "framegate/control/v1/limit_service.proto"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        assert buf("breaking", "--against", "released.binpb", folder=folder).returncode == 100


def declarations(text: str) -> list[tuple[str, str]]:
    """Each line that declares something, with the line before it."""
    lines = [line.strip() for line in text.splitlines()]
    word = re.compile(r"(service|rpc|message|enum|oneof) |.* = \d+;$")
    return [(before, line) for before, line in itertools.pairwise(lines) if word.match(line) and not line.startswith("//")]


@each_of("path", PROTOS)
def test_every_element_has_a_comment(path: Path) -> None:
    found = declarations(path.read_text())
    assert found
    assert [line for before, line in found if not before.startswith("//")] == []


@each_of("path", PROTOS)
def test_a_method_has_a_request_and_a_response_of_its_own(path: Path) -> None:
    methods = re.findall(r"rpc (\w+)\((\w+)\) returns \((?:stream )?(\w+)\) \{", path.read_text())
    assert methods or path.name == "options.proto"
    assert [name for name, request, response in methods if (request, response) != (f"{name}Request", f"{name}Response")] == []


@each_of("path", PROTOS)
def test_enum_values_are_prefixed_and_begin_with_unspecified(path: Path) -> None:
    for name, body in re.findall(r"enum (\w+) \{(.*?)\n *\}", path.read_text(), re.DOTALL):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        values = re.findall(r"(\w+) = (\d+);", body)
        assert values[0] == (f"{prefix}_UNSPECIFIED", "0")
        assert all(value.startswith(f"{prefix}_") for value, _ in values)
        assert [int(number) for _, number in values] == list(range(len(values)))


@each_of("path", PROTOS)
def test_a_list_has_pages(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"message (List(?!Top)\w+)Request \{", text):  # the tops of rankings are short
        request = re.search(rf"message {name}Request \{{(.*?)\n\}}", text, re.DOTALL)
        response = re.search(rf"message {name}Response \{{(.*?)\n\}}", text, re.DOTALL)
        assert request is not None
        assert response is not None
        assert "int32 page_size" in request[1]
        assert "string page_token" in request[1]
        assert "string next_page_token" in response[1]


GO_PLUGINS = ("google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11", "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0")
GO_MODULE = "google.golang.org/grpc@v1.85.0"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stubs_in_go_compile_and_change_a_limit() -> None:
    """The first run downloads and builds the plugins of protoc and gRPC for Go, into the user's cache."""
    programs = module("programs")
    if programs.go() is None:
        pytest.skip("needs Go 1.26 or newer")
    shop = programs.Workshop(programs.cache_directory("api"))
    folder = shop.folder / "client"
    with shop.alone():
        for plugin in GO_PLUGINS:
            if shop.unmade([plugin.partition("@")[0].rpartition("/")[2]]):
                shop.go(["install", plugin], f"building {plugin}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "go.mod").write_text("module framegate\n\ngo 1.24\n")
        shutil.copy(ROOT / "tests/fakes/api_client.go", folder / "main.go")
        plugins = [f"--plugin={shop.bin / name}" for name in ("protoc-gen-go", "protoc-gen-go-grpc")]
        out = [f"--{name}_{what}" for name in ("go", "go-grpc") for what in (f"out={folder}", "opt=module=framegate")]
        protos = [str(path.relative_to(ROOT / "proto")) for path in PROTOS]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *plugins, *out, *protos], cwd=ROOT / "proto", check=True)
        shop.go(["get", GO_MODULE], "getting gRPC for Go", folder)
        shop.go(["build", "-o", str(folder / "client"), "."], "building the client", folder)
    with served() as cli:

        def client(listener: str) -> str:
            command = [str(folder / "client"), cli.address, listener, "incident 7"]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout

        assert [client("plain"), client("plain"), client("nobody")] == ["11\n", "12\n", "LISTENER_NOT_FOUND\n"]
        assert (cli.plane.quotas["plain"].connections, cli.plane.audits[0]["request"]["reason"]) == (12, "incident 7")
