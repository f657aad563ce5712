"""The users file: names, and the salted hashes that SCRAM stores of their passwords. It never has a clear password.

It has one credential per line; blank lines and comments that begin with ``#`` are kept::

    framegate-users 1 decoy=BASE64
    alice SCRAM-SHA-256 salt=…,stored_key=…,server_key=…,iterations=8192
    alice SCRAM-SHA-512 salt=…,stored_key=…,server_key=…,iterations=8192

A name is written as in a URL, with ``%20`` for a space. The credentials are in Kafka's text form. ``decoy`` is a random key, from which the salts of
unknown users are derived, so that they are the same in every process and after every restart.

The file is replaced as a whole, so a reader sees the old or the new one; its mode is 0600. One process changes it at a time.
"""

import base64
import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from framegate.control.identity.passwords import format_credential, parse_credential
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.auth.scram import HASHES

MAX_NAME: Final = 255  # bytes of a name in UTF-8
_TITLE: Final = "framegate-users"
_VERSION: Final = "1"
_DECOY: Final = "decoy="
_DECOY_SIZE: Final = 32
_OWNERS: Final = stat.S_IRUSR | stat.S_IWUSR
_GROUPS: Final = stat.S_IRGRP | stat.S_IWGRP
_MAX_FILE: Final = 64 << 20
_SAFE: Final = "!$&'()*+,;:@./-_~"


class UsersFileError(ValueError):
    """A file of users that cannot be used. ``faults`` are its lines, counted from 1, with what is wrong with each."""

    def __init__(self, path: str, faults: list[tuple[int, str]]) -> None:
        super().__init__("; ".join(f"{path}:{line}: {reason}" for line, reason in faults))
        self.path = path
        self.faults = faults


class UserExistsError(ValueError):
    """A user of that name exists already."""


class UserUnknownError(ValueError):
    """No user of that name exists."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: a comment, or the credential of a user for a mechanism."""

    text: str = field(repr=False)
    user: str = ""
    mechanism: str = ""
    credential: ScramCredential | None = None


@dataclass(slots=True)
class UsersFile:
    """What is in the file."""

    decoy: bytes = field(default_factory=lambda: os.urandom(_DECOY_SIZE), repr=False)  # the random key
    _lines: list[_Line] = field(default_factory=list, repr=False)

    @property
    def users(self) -> dict[str, dict[str, ScramCredential]]:
        """Credentials by user and mechanism, users in the order of the file."""
        found: dict[str, dict[str, ScramCredential]] = {}
        for line in self._lines:
            if line.credential is not None:
                found.setdefault(line.user, {})[line.mechanism] = line.credential
        return found

    def add(self, user: str, credentials: Mapping[str, ScramCredential], *, replace: bool = False) -> None:
        """Add a user, in place of one of the same name if ``replace``. Raises UserExistsError: there is one of that name; ValueError: the name is not
        valid.
        """
        fault = name_fault(user)
        if fault is not None:
            raise ValueError(fault)
        if user in self.users:
            if not replace:
                raise UserExistsError(f"there is a user {user!r}")
            self.remove(user)
        for mechanism, credential in credentials.items():
            text = f"{quote(user, safe=_SAFE)} {mechanism} {format_credential(credential)}"
            self._lines.append(_Line(text, user, mechanism, credential))

    def remove(self, user: str) -> None:
        """Remove a user. Raises UserUnknownError: there is none of that name."""
        left = [line for line in self._lines if line.credential is None or line.user != user]
        if len(left) == len(self._lines):
            raise UserUnknownError(f"there is no user {user!r}")
        self._lines = left

    def text(self) -> str:
        title = f"{_TITLE} {_VERSION} {_DECOY}{base64.b64encode(self.decoy).decode()}"
        return "\n".join((title, *(line.text for line in self._lines))) + "\n"

    @classmethod
    def parse(cls, text: str, path: str = "users") -> "UsersFile":
        """Read the text of a file. Raises UsersFileError: it is none; with all its faults."""
        title, *rest = text.split("\n")
        try:
            made = cls(_decoy(title))
        except ValueError as error:
            raise UsersFileError(path, [(1, str(error))]) from None
        if rest and rest[-1] == "":
            rest.pop()
        faults: list[tuple[int, str]] = []
        seen: dict[tuple[str, str], int] = {}
        for number, line in enumerate(rest, 2):
            try:
                found = _parse_line(line)
                first = seen.setdefault((found.user, found.mechanism), number)
                if found.credential is not None and first != number:
                    raise ValueError(f"{found.user!r} has {found.mechanism} in line {first}, too")
                made._lines.append(found)
            except ValueError as error:
                faults.append((number, str(error)))
        if faults:
            raise UsersFileError(path, faults)
        return made


def name_fault(user: str) -> str | None:
    """Why a name is not valid, or None."""
    if not 1 <= len(user.encode(errors="surrogatepass")) <= MAX_NAME:
        return f"a name has 1 to {MAX_NAME} bytes"
    if not user.isprintable():
        return "a name has no control characters, and none that is no text"
    return None


def read_users(path: str | Path) -> UsersFile:
    """Read a file of users. Raises UsersFileError: it is none; OSError: it cannot be read."""
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE + 1)
    return parse_users(data, str(path))


def parse_users(data: bytes, path: str = "users") -> UsersFile:
    """Read what was in a file of users. Raises UsersFileError: it is none."""
    if len(data) > _MAX_FILE:
        raise UsersFileError(path, [(1, f"the file has more than {_MAX_FILE} bytes")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsersFileError(path, [(data.count(b"\n", 0, error.start) + 1, "not UTF-8")]) from None
    return UsersFile.parse(text, path)


@contextlib.contextmanager
def changing(path: str | Path, *, wait: bool = True) -> Iterator[UsersFile]:
    """Change a users file, which need not exist yet: the given object is written when the block ends without an exception. If another process changes
    the file, wait for it, or raise with ``wait=False``. A link is followed: its target is replaced. Raises UsersFileError: what is there is none, or
    there would be too much in it; BlockingIOError: another process is changing it; OSError: it cannot be read or written.
    """
    target = Path(os.path.realpath(path))
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        before = target.stat() if target.exists() else None
        users = UsersFile() if before is None else read_users(target)
        yield users
        text = users.text()
        if len(text.encode()) > _MAX_FILE:
            raise UsersFileError(str(path), [(1, f"the file would have more than {_MAX_FILE} bytes")])
        _replace(target, text, before)
        os.fsync(folder)
    finally:
        os.close(folder)


def _replace(target: Path, text: str, before: os.stat_result | None) -> None:
    import tempfile  # only where users are changed: it imports compressors

    number, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    try:
        with open(number, "w", encoding="utf-8") as file:
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(number, before.st_uid, before.st_gid)  # root changes what the service must read
            if before is not None:
                os.fchmod(number, _OWNERS | before.st_mode & _GROUPS)  # the service may read it by its group
            file.write(text)
            file.flush()
            os.fsync(number)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _decoy(title: str) -> bytes:
    words = title.split(" ")
    if words[0] != _TITLE:
        raise ValueError(f"the file does not begin with {_TITLE}")
    if len(words) != 3 or words[1] != _VERSION or not words[2].startswith(_DECOY):
        raise ValueError(f"not the title of version {_VERSION}, the one that is known")
    try:
        decoy = base64.b64decode(words[2].removeprefix(_DECOY), validate=True)
    except ValueError:
        raise ValueError("decoy is not base64") from None
    if len(decoy) != _DECOY_SIZE:
        raise ValueError(f"decoy has {len(decoy)} bytes, not {_DECOY_SIZE}")
    return decoy


def _parse_line(line: str) -> _Line:
    if not line.strip() or line.startswith("#"):
        return _Line(line)
    words = line.split(" ")
    if len(words) != 3:
        raise ValueError("a line is NAME MECHANISM CREDENTIAL, with one space between them")
    name, mechanism, text = words
    try:
        user = unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        raise ValueError("the name is not UTF-8") from None
    fault = name_fault(user)
    if fault is not None:
        raise ValueError(fault)
    if mechanism not in HASHES:
        raise ValueError(f"what stands behind the name is no mechanism; known are {', '.join(HASHES)}")  # it may be a password
    return _Line(line, user, mechanism, parse_credential(mechanism, text))
