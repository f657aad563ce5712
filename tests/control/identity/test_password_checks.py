"""What is known of passwords: who came in costs no hash, who fails again costs none either, and nobody learns who there is."""

import pytest

from framegate.control.identity import password_checks as module
from framegate.control.identity.password_checks import FIRST_S, FREE, FREE_OF_ADDRESS, MOST_S, WRONG, PasswordChecks
from framegate.control.identity.users import Users
from framegate.control.identity.users_file import UsersFile
from framegate.proxy.auth.auth_requests import Accepted, AuthResponse, CheckPassword, Refused, Unavailable
from framegate.proxy.auth.scram import HASHES
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import stored

HERE, THERE = "192.0.2.1", "192.0.2.2"
WRONG_PASSWORD, NO_USER = Refused("wrong password"), Refused("no such user")


class Counting(Users):
    hashes = 0

    def check(self, auth_request: CheckPassword) -> Accepted | Refused:
        Counting.hashes += 1
        return super().check(auth_request)


def users(**passwords: str) -> Counting:
    file = UsersFile(decoy=b"always the same" * 3)
    for name, password in passwords.items():
        file.add(name, {mechanism: stored(mechanism, password) for mechanism in HASHES})
    return Counting(file)


class Bench:
    """Checks, with a clock of the test's own."""

    def __init__(self, **passwords: str) -> None:
        self.now_s = 1000.0
        self.checks = PasswordChecks(lambda: self.now_s)
        self.users = users(**(passwords or {"user": "pencil"}))

    def check(self, password: str, user: str = "user", address: str = HERE) -> tuple[AuthResponse, int]:
        """The answer, and how much was hashed for it."""
        before = Counting.hashes
        auth_request = CheckPassword(user, password)
        at_once = self.checks.at_once(self.users, auth_request, address)
        answer = self.checks.check(self.users, auth_request, address)
        hashed = Counting.hashes - before
        assert (at_once == answer) is (hashed == 0)
        return answer, hashed


def test_who_came_in_is_known_from_everywhere_until_the_password_is_another() -> None:
    bench = Bench(user="pencil", other="pencil")
    assert bench.check("pencil") == (Accepted("user"), 1)
    assert bench.check("pencil", address=THERE) == (Accepted("user"), 0)
    assert bench.check("pencil", user="other") == (Accepted("other"), 1), "it is known of one user only"
    bench.users = users(user="pencil", new="x")
    assert bench.check("pencil") == (Accepted("user"), 0), "a file with others changes nothing of it"
    bench.users = users(user="brush")
    assert bench.check("pencil") == (WRONG_PASSWORD, 1)
    assert bench.check("brush") == (Accepted("user"), 1)
    bench.users = users(new="x")
    assert bench.check("brush") == (NO_USER, 1)
    bench.users = users(user="brush")
    assert bench.check("brush")[0] == Accepted("user"), "who was gone is there again"


@each_of(("user", "told"), [("user", WRONG_PASSWORD), ("nobody", NO_USER)])
def test_the_same_wrong_password_is_hashed_once_and_never_put_off(user: str, told: Refused) -> None:
    """Likewise of a user that there is not: neither the answers nor what they cost tell."""
    bench = Bench()
    assert [bench.check("wrong", user) for _ in range(50)] == [(told, 1)] + [(told, 0)] * 49
    assert bench.check("wrong", user, THERE) == (told, 1)
    assert bench.check("another", user) == (told, 1)


@each_of("user", ["user", "nobody"])
def test_who_tries_others_is_put_off_for_longer_and_longer(user: str) -> None:
    bench = Bench()
    for tries in range(FREE):
        assert isinstance(bench.check(f"guess {tries}", user)[0], Refused)
    for number, pause_s in enumerate((FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S, 16 * FIRST_S, 32 * FIRST_S, MOST_S, MOST_S)):
        bench.now_s += pause_s - 0.001
        answer, hashed = bench.check(f"next {number}", user)
        assert (isinstance(answer, Unavailable), hashed) == (True, 0), pause_s
        bench.now_s += 0.002
        assert isinstance(bench.check(f"next {number}", user)[0], Refused)
    assert bench.check("pencil", user, THERE)[1] == 1, "elsewhere it is tried"
    assert isinstance(bench.check("pencil", user)[0], Unavailable if user == "nobody" else Accepted)


def test_who_is_known_comes_in_while_others_from_there_are_put_off_and_that_ends_nothing() -> None:
    bench = Bench()
    for tries in range(FREE):
        bench.check(f"guess {tries}")
    answer, _ = bench.check("pencil")
    assert answer == Unavailable(f"{FREE} wrong passwords of this user from this address: not tried for {FIRST_S:.1f} s"), "nobody said it is wrong"
    bench.now_s += FIRST_S
    assert bench.check("pencil") == (Accepted("user"), 1)
    for tries in range(FREE):
        bench.check(f"guess {tries}")
    assert isinstance(bench.check("next")[0], Unavailable)
    assert bench.check("pencil") == (Accepted("user"), 0)


def test_who_tries_many_users_from_one_address_is_put_off_with_all_tries_from_there() -> None:
    bench = Bench(user="pencil", known="pencil")
    bench.check("pencil", "known")
    for tries in range(FREE_OF_ADDRESS):
        assert bench.check("guess", f"somebody {tries}") == (NO_USER, 1)
    answer, hashed = bench.check("pencil")
    assert (answer, hashed) == (Unavailable(f"{FREE_OF_ADDRESS} wrong passwords from this address: not tried for {FIRST_S:.1f} s"), 0)
    assert bench.check("pencil", "known") == (Accepted("known"), 0)
    assert bench.check("guess", "somebody 0") == (NO_USER, 0)
    assert bench.check("pencil", address=THERE) == (Accepted("user"), 1)
    hashes = 0
    for number in range(400):
        bench.now_s += 0.1
        hashes += bench.check("guess", f"next {number}")[1]
    assert 30 <= hashes <= 45, "about one each second"
    bench.now_s += FREE_OF_ADDRESS + 20
    assert [bench.check("guess", f"later {number}")[1] for number in range(20)] == [1] * 20


def test_clients_of_a_unix_socket_have_no_address_that_is_put_off() -> None:
    bench = Bench()
    assert [bench.check("guess", f"somebody {tries}", "")[1] for tries in range(2 * FREE_OF_ADDRESS)] == [1] * 2 * FREE_OF_ADDRESS


def test_after_five_minutes_nothing_is_held_against_anybody() -> None:
    bench = Bench()
    for tries in range(FREE):
        bench.check(f"guess {tries}")
    bench.now_s += 300.1
    for tries in range(FREE - 1):
        bench.check(f"later {tries}")
    assert bench.check("last of them") == (WRONG_PASSWORD, 1)


def test_what_is_remembered_is_bounded_and_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", 3)
    monkeypatch.setattr(module, "PUT_OFF", 3)
    bench = Bench(**{f"user{number}": "canary" for number in range(5)})
    for number in range(5):
        bench.check("canary", f"user{number}")
        for tries in range(WRONG + 2):
            bench.check(f"canary {tries}", f"user{number}", f"192.0.2.{number}")
    checks = bench.checks
    assert (len(checks._known), len(checks._failures)) == (3, 3)
    assert {len(each.wrong) for each in checks._failures.values()} == {0, WRONG}, "of addresses, only how many"
    assert [bench.check("canary", f"user{number}")[1] for number in (4, 3, 2, 1)] == [0, 0, 0, 1]
    assert "canary" not in repr([checks._known, [each.wrong for each in checks._failures.values()]])
    assert bench.check("long", "u" * 60_000)[0] == NO_USER
    assert max(map(len, checks._failures)) == 32
