"""framegate.control.identity.users: who there is, and that nobody can tell."""

import dataclasses

from framegate.control.identity import users as module
from framegate.control.identity.passwords import DEFAULT_ITERATIONS, new_credentials
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.auth.auth_requests import Accepted, CheckPassword, Refused, WantCredential
from framegate.proxy.auth.scram import HASHES, SCRAM_SHA_256, SCRAM_SHA_512
from tests.fakes.sasl_frames import stored

FILE = UsersFile()
FILE.add("user", {mechanism: stored(mechanism) for mechanism in HASHES})
FILE.add("half", {SCRAM_SHA_256: stored(SCRAM_SHA_256)})
FILE.add("other half", {SCRAM_SHA_512: stored(SCRAM_SHA_512)})
FILE.add("strong", new_credentials("pencil", iterations=16384))
FILE.add("usual", {mechanism: stored(mechanism, "other") for mechanism in HASHES})


def test_plain_is_checked_against_what_scram_stores() -> None:
    users = Users(FILE)
    for name in ("user", "half", "other half", "strong"):
        assert users.check(CheckPassword(name, "pencil")) == Accepted(name)
        assert users.check(CheckPassword(name, "wrong")) == Refused("wrong password")
    assert users.check(CheckPassword("nobody", "pencil")) == Refused("no such user")
    assert len(users) == 5


def test_what_is_stored_is_given_for_its_mechanism() -> None:
    users = Users(FILE)
    assert users.credential(WantCredential(SCRAM_SHA_512, "user")) == stored(SCRAM_SHA_512)
    missing = users.credential(WantCredential(SCRAM_SHA_512, "half"))
    assert not missing.is_known, "an entry for the other mechanism is none"


def test_who_is_not_there_has_a_salt_that_stays_the_same() -> None:
    users, again = Users(FILE), Users(UsersFile.parse(FILE.text()))
    seen = set()
    for mechanism in HASHES:
        for name in ("nobody", "nobody2", "", "\ud800"):
            found = users.credential(WantCredential(mechanism, name))
            assert found == again.credential(WantCredential(mechanism, name)), "in every process, after every restart"
            assert not found.is_known
            real = users.credential(WantCredential(mechanism, "user"))
            assert len(found.stored_key) == len(real.stored_key)
            seen.add(found.salt)
    assert len(seen) == 8
    other = Users(UsersFile()).credential(WantCredential(SCRAM_SHA_256, "nobody"))
    assert (other.salt in seen, other.iterations) == (False, DEFAULT_ITERATIONS)


def shapes(users: Users, name: str) -> tuple[tuple[int, int], ...]:
    """What is told of somebody before he has proved anything: iterations and length of the salt, for each mechanism."""
    found = [users.credential(WantCredential(mechanism, name)) for mechanism in HASHES]
    return tuple((item.iterations, len(item.salt)) for item in found)


def test_who_is_not_there_looks_like_those_who_are() -> None:
    file = UsersFile.parse(FILE.text())
    file.add("kafkas own", {SCRAM_SHA_512: dataclasses.replace(stored(SCRAM_SHA_512), salt=b"s" * 26)})
    users = Users(file)
    there = {shapes(users, name) for name in file.users}
    strangers = {f"stranger {number}": shapes(users, f"stranger {number}") for number in range(200)}
    assert set(strangers.values()) == there, "each kind has strangers, and no stranger is of a kind of his own"
    file.add("another", new_credentials("x", iterations=16384))
    later = Users(file)
    assert {name: shapes(later, name) for name in strangers} == strangers, "another user of a kind that there is changes nothing"


def test_a_password_is_hashed_as_often_for_who_is_not_there(monkeypatch) -> None:
    hashed: list[tuple[str, int]] = []
    real = module.is_password_of

    def count(mechanism: str, credential, password: str) -> bool:
        hashed.append((mechanism, credential.iterations))
        return real(mechanism, credential, password)

    monkeypatch.setattr(module, "is_password_of", count)
    file = UsersFile()
    file.add("user", {mechanism: stored(mechanism) for mechanism in HASHES})
    users = Users(file)
    for name, password in (("user", "pencil"), ("user", "wrong"), ("nobody", "pencil")):
        users.check(CheckPassword(name, password))
    assert hashed == [(SCRAM_SHA_256, 4096)] * 3
