"""framegate.control.identity.users_file: read with every fault at once, changed as a whole, by one at a time."""

import fcntl
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UserExistsError, UsersFile, UsersFileError, UserUnknownError, changing, read_users
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import stored

CREDENTIALS = {mechanism: stored(mechanism) for mechanism in HASHES}
NAMES = ("alice", "a b", "a,b=c", "ü", "#hash", "%41", "CN=a,O=b", "a" * 255)


def file_of(*names: str) -> UsersFile:
    made = UsersFile()
    for name in names:
        made.add(name, CREDENTIALS)
    return made


def test_awkward_names_come_back_in_order() -> None:
    made = file_of(*NAMES)
    found = UsersFile.parse(made.text())
    assert list(found.users) == list(NAMES)
    assert found.users["a b"] == CREDENTIALS
    assert (found.decoy, found.text()) == (made.decoy, made.text())


@given(st.text(min_size=1, max_size=40))
def test_a_name_comes_back_or_nobody_can_have_it(name: str) -> None:
    made = UsersFile()
    try:
        made.add(name, {SCRAM_SHA_256: CREDENTIALS[SCRAM_SHA_256]})
    except ValueError:
        assert not name.isprintable() or len(name.encode(errors="surrogatepass")) > 255
        return
    assert list(UsersFile.parse(made.text()).users) == [name]


@each_of("name", ["", "a\n", "\0", "a" * 256, "\ud800", "\u200b\u2028"])
def test_names_that_nobody_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="a name has"):
        file_of(name)


def test_a_user_is_there_once_and_has_one_password() -> None:
    made = file_of("alice", "bob")
    with pytest.raises(UserExistsError):
        made.add("alice", CREDENTIALS)
    other = {SCRAM_SHA_256: stored(SCRAM_SHA_256, "other")}
    made.add("alice", other, replace=True)
    assert made.users == {"bob": CREDENTIALS, "alice": other}
    made.remove("bob")
    with pytest.raises(UserUnknownError):
        made.remove("bob")
    assert list(UsersFile.parse(made.text()).users) == ["alice"]


def test_comments_and_blank_lines_stay() -> None:
    title, *lines = file_of("alice").text().splitlines()
    text = "\n".join((title, "# who is who", "", *lines, "  ", "# the end")) + "\n"
    found = UsersFile.parse(text)
    assert found.text() == text
    found.remove("alice")
    assert found.text().splitlines()[1:] == ["# who is who", "", "  ", "# the end"]


def test_every_fault_is_told_with_its_line() -> None:
    title, sha256, sha512 = file_of("alice").text().splitlines()
    text = "\n".join(
        (
            title,
            sha256,
            "alice",
            sha256,
            sha512.replace("SCRAM-SHA-512", "PLAIN"),
            sha512.replace("alice", "%FF"),
            sha512.replace("alice", "%0A"),
            sha512.replace("iterations=4096", "iterations=1"),
            sha512.replace(" ", "  "),
            sha512,
        )
    )
    with pytest.raises(UsersFileError) as caught:
        UsersFile.parse(text, "users")
    assert [line for line, _ in caught.value.faults] == [3, 4, 5, 6, 7, 8, 9]
    assert caught.value.faults[1] == (4, "'alice' has SCRAM-SHA-256 in line 2, too")
    assert str(caught.value).startswith("users:3: a line is NAME MECHANISM CREDENTIAL")


@each_of(
    "title",
    [
        "",
        "users",
        "framegate-users",
        "framegate-users 2 decoy=AA==",
        "framegate-users 1 decoy=!",
        "framegate-users 1 decoy=AA==",
        "framegate-users 1 x",
    ],
)
def test_what_is_no_file_of_users(title: str) -> None:
    with pytest.raises(UsersFileError) as caught:
        UsersFile.parse(title + "\n")
    assert caught.value.faults[0][0] == 1


@given(st.text(alphabet="framegate-us1 decoy=\nALICE%#SCRAM-,", max_size=80))
def test_garbage_is_refused_or_comments(text: str) -> None:
    title = file_of().text()
    try:
        found = UsersFile.parse(title + text)
    except UsersFileError as caught:
        lines = [line for line, _ in caught.faults]
    else:
        lines = []
        assert found.users == {}
    assert all(2 <= line <= text.count("\n") + 2 for line in lines)


def test_what_is_not_text_has_a_line_too(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(file_of().text().encode() + b"# \xff\n")
    with pytest.raises(UsersFileError, match=":2: not UTF-8"):
        read_users(path)


# Changing it.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file, alone in its folder, with the user alice."""
    path = tmp_path / "users"
    with changing(path) as file:
        file.add("alice", CREDENTIALS)
    return path


def test_a_new_file_is_for_its_owner_only(no_umask: None, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for before, after in ((0o644, 0o640), (0o660, 0o660), (0o777, 0o660), (0o400, 0o600)):
        path.chmod(before)
        with changing(path) as file:
            file.add("bob", CREDENTIALS, replace=True)
        assert stat.S_IMODE(path.stat().st_mode) == after, "who read it as one of its group goes on to"
    assert list(read_users(path).users) == ["alice", "bob"]
    assert os.listdir(path.parent) == ["users"], "nothing else is left"


def test_no_clear_password_is_ever_in_it(tmp_path: Path) -> None:
    path = tmp_path / "users"
    with changing(path) as file:
        file.add("alice", new_credentials("canary-password", iterations=4096))
        assert "canary" not in repr(file)
    assert b"canary" not in path.read_bytes()


def test_a_change_that_fails_leaves_everything_as_it_was(path: Path) -> None:
    before = (path.read_bytes(), path.stat().st_ino)
    with pytest.raises(UserExistsError), changing(path) as file:
        file.add("alice", CREDENTIALS)
    assert (path.read_bytes(), path.stat().st_ino, os.listdir(path.parent)) == (*before, ["users"])


def test_a_write_that_fails_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"), changing(path) as file:
        file.remove("alice")
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, ["users"])


def test_a_reader_sees_the_old_or_the_new_one(path: Path) -> None:
    with open(path, "rb") as reader:
        with changing(path) as file:
            file.add("bob", CREDENTIALS)
        assert list(UsersFile.parse(reader.read().decode()).users) == ["alice"]


def test_a_link_stays_and_what_it_points_at_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "users"
    link.symlink_to("real/users")
    with changing(link) as file:
        file.add("alice", CREDENTIALS)
    assert link.is_symlink()
    assert list(read_users(tmp_path / "real" / "users").users) == ["alice"]


def test_a_broken_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("something else\n")
    with pytest.raises(UsersFileError), changing(path):
        pytest.fail("there is nothing to be changed")
    assert path.read_text() == "something else\n"


def add_some(path: Path, first: int) -> None:
    for number in range(first, first + 10):
        with changing(path) as file:
            file.add(f"user{number}", CREDENTIALS)


@pytest.mark.slow
def test_two_who_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_some, args=(path, first)) for first in (0, 100)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert len(read_users(path).users) == 20


def test_who_changes_it_holds_the_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with changing(tmp_path / "users"), pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
