"""framegate.control.cli.users: the file of users, from the command line."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.users import users
from framegate.control.identity.passwords import is_password_of
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import read_users
from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, Refused
from tests.fakes.cli import NO_FILE_GROWS, Cli, served, start_cli


def run(*words: str, password: str | bytes | None = None) -> Any:
    return CliRunner().invoke(main, ["users", *words], input=password)


def add(path: Path, name: str, password: str = "canary", *words: str) -> Any:
    return run("add", name, "--file", str(path), "--iterations", "4096", *words, password=password + "\n")


def test_add_list_remove(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert (add(path, "alice").output, add(path, "a b", "other").exit_code) == ("", 0)
    assert Users(read_users(path)).check(CheckPassword("alice", "canary")) == Accepted("alice")
    listed = run("list", "--file", str(path))
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["NAME", "MECHANISMS"], ["alice", "SCRAM-SHA-256"], ["a", "b"]]
    assert json.loads(run("list", "--file", str(path), "--output", "json").stdout)[0] == {
        "name": "alice",
        "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096},
    }
    assert run("remove", "alice", "--file", str(path)).exit_code == 0
    assert list(read_users(path).users) == ["a b"]


def test_a_user_that_there_is_keeps_its_password_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add(path, "alice")
    result = add(path, "alice", "new")
    assert (result.exit_code, "--replace" in result.stderr) == (4, True)
    assert Users(read_users(path)).check(CheckPassword("alice", "new")) == Refused("wrong password")
    assert add(path, "alice", "new", "--replace").exit_code == 0
    assert Users(read_users(path)).check(CheckPassword("alice", "new")) == Accepted("alice")


@pytest.mark.parametrize("password", ["", "\n", "a\0b\n", "\x1b[A\n", b"\xff\n", "one\ntwo\n", "one\n\n"])
def test_what_is_no_password(tmp_path: Path, password: str | bytes) -> None:
    result = run("add", "alice", "--file", str(tmp_path / "users"), password=password)
    assert (result.exit_code, "must be one line of printable text" in result.stderr) == (2, True)
    assert not (tmp_path / "users").exists()


def test_names_that_nobody_can_have(tmp_path: Path) -> None:
    result = add(tmp_path / "users", "a\nb")
    assert (result.exit_code, "control characters" in result.stderr) == (2, True)


def test_who_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "users"
    for words in (("list",), ("remove", "alice")):
        result = run(*words, "--file", str(path))
        assert (result.exit_code, "No such file" in result.stderr, path.exists()) == (3, True, False)
    add(path, "alice")
    result = run("remove", "bob", "--file", str(path))
    assert (result.exit_code, "no user 'bob'" in result.stderr) == (3, True)


def test_a_broken_file_is_told_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add(path, "alice")
    path.write_text(path.read_text() + "x\ny\n")
    result = run("list", "--file", str(path))
    assert (result.exit_code, [line.split(":")[2] for line in result.stderr.splitlines()]) == (2, ["4", "5"])
    assert add(path, "bob").exit_code == 2


def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    result = add(tmp_path / "none" / "users", "alice")
    assert (result.exit_code, "No such file" in result.stderr) == (3, True)


@pytest.mark.slow
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert add(path, "alice").exit_code == 0
    for words in (("add", "bob", "--iterations", "4096"), ("remove", "alice")):
        with start_cli("users", *words, "--file", str(path), stdin=subprocess.PIPE, before=NO_FILE_GROWS) as process:
            assert process.communicate("canary\n", timeout=30) == ("", f"framegate: {path}: File too large\n")
        assert (process.returncode, list(read_users(path).users), os.listdir(tmp_path)) == (1, ["alice"], ["users"])


def test_there_is_no_way_to_say_a_password_on_the_command_line(tmp_path: Path) -> None:
    command = users.commands["add"]
    expected = {"name", "path", "listener", "address", "tls", "replace", "iterations", "etag", "reason", "dry_run"}
    assert {item.name for item in command.params} == expected
    result = run("add", "alice", "canary", "--file", str(tmp_path / "users"))
    assert result.exit_code == 2


def to_listener(cli: Cli, *words: str, password: str = "canary\n") -> Any:
    return CliRunner(env={"FRAMEGATE_ADDRESS": cli.address}).invoke(main, ["users", *words, "--listener", "kafka"], input=password)


def test_users_of_a_running_framegate(tmp_path: Path) -> None:
    with served() as cli:
        added = to_listener(cli, "add", "alice", "--iterations", "4096", "--reason", "new colleague")
        assert (added.exit_code, added.output) == (0, "")
        entry = cli.plane.users["kafka"]["alice"]
        assert is_password_of("SCRAM-SHA-256", entry["SCRAM-SHA-256"], "canary")
        assert is_password_of("SCRAM-SHA-512", entry["SCRAM-SHA-512"], "canary")
        assert cli.json("users", "list", "--listener", "kafka") == [{"name": "alice", "mechanisms": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}]
        assert (to_listener(cli, "add", "alice").exit_code, to_listener(cli, "add", "alice", "--replace", password="new\n").exit_code) == (4, 0)
        assert is_password_of("SCRAM-SHA-256", cli.plane.users["kafka"]["alice"]["SCRAM-SHA-256"], "new")
        assert to_listener(cli, "add", "bob", "--replace", "--iterations", "4096").exit_code == 0
        assert to_listener(cli, "remove", "alice").exit_code == 0
        gone = to_listener(cli, "remove", "alice")
        assert (gone.exit_code, gone.stderr) == (3, "framegate: there is no user 'alice' (USER_NOT_FOUND)\n")
        assert list(cli.plane.users["kafka"]) == ["bob"]
        assert cli.plane.audits[0]["request"]["reason"] == "new colleague"
        cli.plane.users_error = "/users is no file of users"
        listed = cli("users", "list", "--listener", "kafka")
        assert [line.split() for line in listed.stdout.splitlines()] == [["NAME", "MECHANISMS", "ITERATIONS"], ["bob", *entry, "4096", "4096"]]
        assert listed.stderr == "framegate: the present users file is not in force: /users is no file of users\n"


@pytest.mark.parametrize("words", [("list",), ("add", "alice"), ("remove", "alice")], ids=" ".join)
def test_users_are_those_of_one_place(tmp_path: Path, words: tuple[str, ...]) -> None:
    for where in ((), ("--file", str(tmp_path / "users"), "--listener", "kafka")):
        result = run(*words, *where, password="canary\n")
        assert (result.exit_code, "one of --file and --listener" in result.stderr) == (2, True)
    if words != ("list",):
        result = run(*words, "--file", str(tmp_path / "users"), "--reason", "x", password="canary\n")
        assert (result.exit_code, "--reason and --dry-run need --listener" in result.stderr) == (2, True)
    assert not (tmp_path / "users").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "code"), [((b"canary", b"canary"), 0), ((b"canary", b"canaru", b"x1", b"x1"), 0)])
def test_a_terminal_is_asked_twice_and_shows_nothing(tmp_path: Path, answers: tuple[bytes, ...], code: int) -> None:
    path = tmp_path / "users"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "framegate.control.cli", "users", "add", "alice", "--file", str(path)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    for number, answer in enumerate(answers, 1):
        while shown.count(b": ") < number + shown.count(b"Error: "):
            shown += os.read(ours, 1000)
        os.write(ours, answer + b"\n")
    assert process.wait(30) == code
    os.close(ours)
    assert b"canary" not in shown
    assert Users(read_users(path)).check(CheckPassword("alice", answers[-1].decode())) == Accepted("alice")
