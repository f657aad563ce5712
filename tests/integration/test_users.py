"""Users of a running framegate, over its API: what its command line is told holds for the next login."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, run_cli
from tests.fakes.sasl_frames import log_in
from tests.fakes.upstream import ScriptedUpstream, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]  # a whole framegate, and a process for each command
PASSWORD, OTHER = "canary-of-alice-5d1", "canary-of-alice-5d2"


class Rig:
    """A framegate with the listener ``sasl``, whose file of users lies in a folder that it may write."""

    def __init__(
        self, folder: Path, upstream: ScriptedUpstream, undo: contextlib.ExitStack, processors: int = 1, keeps: dict[str, Any] | None = None
    ) -> None:
        self.file = folder / "users"
        common = {"address": "127.0.0.1:0", "upstream": "echo", "protocol": "kafka", "max_receive_size": "1MiB"}
        sasl = {"mechanisms": ["PLAIN"], "users": "users"}
        run_cli("users", "add", "first", "--file", str(self.file), text="x\n")
        config: dict[str, Any] = {
            "memory_pool": {"size": "16MiB"},
            "rotation": {"poll": "1h"},  # whatever is noticed is noticed by the command
            "listeners": [{"name": "sasl", **common, "timeouts": {"failed_authentication": "0ms"}, "sasl": sasl}, {"name": "open", **common}],
            "processors": processors,
            "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
        }
        if keeps is not None:
            config["listeners"].append({"name": "keeps", **common, "sasl": sasl, **keeps})
        self.proxy = undo.enter_context(Framegate(folder, config))

    def ask(self, *words: str, listener: str = "sasl", password: str = "") -> tuple[int, str]:
        """Exit code, and what is said on standard error."""
        done = run_cli("users", *words, "--listener", listener, "--address", self.proxy.serving["admin"], text=f"{password}\n")
        return done.returncode, done.stderr

    def is_let_in(self, password: str) -> bool:
        with self.proxy.connect("sasl") as client:
            return log_in(client, "alice", password)


@pytest.fixture
def rig(tmp_path: Path, upstream: ScriptedUpstream) -> Iterator[Rig]:
    with contextlib.ExitStack() as undo:
        yield Rig(tmp_path, upstream, undo)


def test_a_user_comes_and_goes_while_framegate_runs_and_no_password_is_on_the_way(rig: Rig) -> None:
    assert not rig.is_let_in(PASSWORD)
    assert rig.ask("add", "alice", "--reason", "new colleague", password=PASSWORD) == (0, "")
    assert rig.is_let_in(PASSWORD)
    with rig.proxy.connect("sasl") as client:
        assert log_in(client, "alice", PASSWORD)
        assert rig.ask("add", "alice", "--replace", password=OTHER) == (0, "")
        assert client.recv(1) == b"", "it has another password"
    assert (rig.is_let_in(PASSWORD), rig.is_let_in(OTHER)) == (False, True)
    code, words = rig.ask("add", "alice", password=PASSWORD)
    assert (code, words) == (4, "framegate: there is a user 'alice' already (USER_EXISTS)\n")
    assert rig.ask("remove", "alice") == (0, "")
    assert not rig.is_let_in(OTHER)
    assert rig.ask("remove", "alice") == (3, "framegate: there is no user 'alice' (USER_NOT_FOUND)\n")
    code, words = rig.ask("list", listener="open")
    assert (code, "NO_USERS_FILE" in words) == (1, True)
    audits = rig.proxy.events("audit")
    both = {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    known: list[Any] = [{"name": "alice", "mechanisms": both}]
    assert [(row["before"], row["after"], row["result"]) for row in audits] == [
        (None, *known, "OK"),
        (*known, *known, "OK"),
        (None, None, "ALREADY_EXISTS"),
        (*known, None, "OK"),
        (None, None, "NOT_FOUND"),
    ]
    said = json.dumps(rig.proxy.rows)
    assert not any(secret in said for secret in (PASSWORD, OTHER, "stored_key", "server_key"))


@pytest.mark.extended
def test_who_is_removed_ends_in_every_processor_and_others_go_on(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    """By a command, in the file, by a command of an operator, and not where the listener says so."""
    with contextlib.ExitStack() as undo:
        rig = Rig(tmp_path, upstream, undo, processors=2, keeps={"close_revoked": False})
        for user in ("alice", "bob", "carol"):
            assert rig.ask("add", user, password=PASSWORD) == (0, "")
        clients = {user: [rig.proxy.connect("sasl") for _ in range(6)] for user in ("alice", "bob", "carol")}
        kept = rig.proxy.connect("keeps")
        for user, each in [*clients.items(), ("alice", [kept])]:
            assert all(log_in(client, user, PASSWORD) for client in each)
        rows = rig.proxy.json("channels", "list")
        assert {row["processor_slot"] for row in rows if row["principal"] == "alice"} == {0, 1}

        assert rig.ask("remove", "alice") == (0, "")
        assert [client.recv(1) for client in clients["alice"]] == [b""] * 6
        assert run_cli("users", "remove", "bob", "--file", str(rig.file)).returncode == 0
        assert rig.proxy.cli("certificates", "reload").returncode == 0
        assert [client.recv(1) for client in clients["bob"]] == [b""] * 6
        for client in (*clients["carol"], kept):
            assert ask(client, b"still here") == b"still here"
        done = rig.proxy.cli("channels", "close", "--filter", "principal=carol", "--reason", "left")
        assert (done.returncode, done.stdout.count("closed")) == (0, 6), done.stderr
        assert [client.recv(1) for client in clients["carol"]] == [b""] * 6
        done = rig.proxy.cli("channels", "close", "--filter", "principal=dave")
        assert (done.returncode, done.stderr) == (0, "framegate: no open channels match; none was closed\n")
        closed = [rig.proxy.closed_row(client) for each in clients.values() for client in each]
        ended = [(row["principal"], row["cause"], row["detail"]) for row in closed]
        gone = "the user was removed, or the password was changed"
        assert sorted(ended) == sorted(
            [("alice", "session_expired", gone)] * 6 + [("bob", "session_expired", gone)] * 6 + [("carol", "admin", "left")] * 6
        )
        audit = next(row for row in rig.proxy.events("audit") if row["method"].endswith("CloseChannels"))
        assert audit["request"]["selector"] == {"filter": "principal=carol"}
