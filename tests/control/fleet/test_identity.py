"""Who answers in the control process: what its files held, and hold, and what upstreams understand."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet.child import Child
from framegate.control.fleet.identity import Identity
from framegate.control.identity.files import IdentityFileError
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.config.tls import UpstreamTls
from framegate.proxy.server.messages import QuestionNotice
from framegate.proxy.server.rows import Store
from tests.fakes.fleet import MemoryLog
from tests.fakes.sasl_frames import known_apis, versions_answer
from tests.fakes.tls import TlsWorld

Scenario = Callable[["Rig"], Awaitable[None]]


def users(**passwords: str) -> bytes:
    made = UsersFile()
    for name, password in passwords.items():
        made.add(name, new_credentials(password, iterations=4096))
    return made.text().encode()


class Rig:
    """Two listeners with SASL, one behind a handler, and a process that asks."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "users"
        self.log, self.meters = MemoryLog(), Meters()
        sasl = ListenerSasl(mechanisms=("PLAIN",), users=str(self.file))
        config = ProxyConfig(
            node="n",
            listeners=(
                ListenerConfig(name="a", address="x", upstream="u", protocol="kafka", sasl=sasl),
                ListenerConfig(name="h", address="x", handler="m:h", protocol="kafka", sasl=sasl),
                ListenerConfig(name="open", address="x", upstream="u"),
            ),
            upstreams=(
                UpstreamConfig(
                    name="u", endpoints=("127.0.0.1:1",), sasl=UpstreamSasl(mechanism="PLAIN", user="gate", password_file=str(folder / "ours"))
                ),
            ),
        )
        self.identity = Identity(config, lambda: {"u": []}, dict, self.meters, self.log, TaskMonitor(self.log, self.meters))
        self.told: list[Any] = []
        self.link = self
        self.asked = 0

    def post(self, message: Any) -> None:
        self.told.append(message)

    async def ask(self, kind: str, auth_queue: str = "listener:a", **row: Any) -> tuple[str, dict[str, Any]]:
        """What a question of a processor's is answered with."""
        assert self.identity.auth_requests is not None
        self.asked += 1
        notice = QuestionNotice(type="question", number=self.asked, desk=auth_queue, address="", kind=kind, row=row)
        self.identity.auth_requests.hear(cast(Child, self), notice)
        while not self.told:
            await asyncio.sleep(0.001)
        (answer,) = self.told
        self.told.clear()
        return answer["kind"], answer["row"]

    async def is_password(self, password: str, auth_queue: str = "listener:a") -> bool:
        return (await self.ask("CheckPassword", auth_queue, user="alice", password=password))[0] == "Accepted"


def run(folder: Path, scenario: Scenario, data: bytes | None = None) -> Rig:
    async def main() -> Rig:
        rig = Rig(folder)
        rig.file.write_bytes(users(alice="first") if data is None else data)
        try:
            async with asyncio.timeout(10):
                assert await rig.identity.start() == {name: {str(rig.file): rig.file.read_bytes()} for name in "ah"}
                await scenario(rig)
        finally:
            await rig.identity.stop()
        return rig

    return asyncio.run(main())


def test_our_own_secrets_are_read_each_time_they_are_asked_for(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for text in ("first", "second"):
            (tmp_path / "ours").write_text(text + "\n")
            assert await rig.ask("WantSecret", "upstream:u", credential="u") == ("Secret", {"text": text})
        assert (await rig.ask("WantSecret", "upstream:u", credential="v"))[1] == {"reason": "there is no credential 'v'"}
        (tmp_path / "ours").unlink()
        kind, row = await rig.ask("WantScramKeys", "upstream:u", credential="u", mechanism="SCRAM-SHA-256", salt="00", iterations=4096)
        assert (kind, row["reason"]) == ("Unavailable", f"{tmp_path / 'ours'} cannot be read: No such file or directory")

    run(tmp_path, scenario)


def test_each_listener_answers_from_its_files(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.is_password("first")
        assert await rig.is_password("first", "listener:h")
        assert not await rig.is_password("other")
        assert (await rig.ask("SupportedApis", "listener:h", version=3))[1] == {"answer": known_apis().answer.hex()}
        kind, row = await rig.ask("SupportedApis", version=3)
        assert (kind, row["reason"].partition(":")[0]) == ("Unavailable", "what the upstream u understands is not known")
        assert (await rig.ask("SupportedApis", "listener:open", version=3))[1] == {"reason": "there is no queue listener:open"}
        assert (rig.identity.files("a"), rig.identity.files("open")) == ({"sasl": str(rig.file)}, {})

    run(tmp_path, scenario)


def test_what_is_taken_holds_for_what_is_asked_afterwards_and_what_is_none_is_not_taken(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.identity.take("a", {str(rig.file): users(alice="second")})
        assert [await rig.is_password("first"), await rig.is_password("second")] == [False, True]
        assert await rig.is_password("first", "listener:h"), "another listener's"
        with pytest.raises(IdentityFileError):
            rig.identity.take("a", {str(rig.file): b"nonsense"})
        assert await rig.is_password("second")

    run(tmp_path, scenario)


def test_a_file_that_is_none_at_the_start_is_the_end_of_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        raise AssertionError("it has not started")

    with pytest.raises(StartError, match="users: is no file of users: line 1"):
        run(tmp_path, scenario, b"nonsense")


def test_an_upstream_is_asked_with_what_is_in_force_and_not_with_what_lies_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    world = TlsWorld.make(tmp_path / "tls")
    paths = {"ca": str(tmp_path / "ca.crt"), "certificate": str(tmp_path / "tls.crt"), "key": str(tmp_path / "tls.key")}  # none of them is there
    known = dict(zip(paths.values(), (Path(path).read_text("latin-1") for path in (world.authority, *world.client)), strict=True))

    async def scenario() -> None:
        names: list[str] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            names.append(dict(item[0] for item in writer.get_extra_info("peercert")["subject"])["commonName"])
            body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            answer = versions_answer(body[3], ApiRange(3, 0, 12), correlation=int.from_bytes(body[4:8], "big"))
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=world.server_settings(client_auth="required").context)
        port = server.sockets[0].getsockname()[1]
        tls = UpstreamTls(server_name="localhost", **paths)
        config = ProxyConfig(
            node="n",
            listeners=(
                ListenerConfig(name="a", address="x", upstream="u", protocol="kafka", sasl=ListenerSasl(mechanisms=("PLAIN",), users=users_file)),
            ),
            upstreams=(UpstreamConfig(name="u", endpoints=(f"127.0.0.1:{port}",), tls=tls),),
        )
        log, meters = MemoryLog(), Meters()
        address = ["127.0.0.1", int(socket.AF_INET), "127.0.0.1", port]
        identity = Identity(config, lambda: {"u": [address]}, lambda: {"upstream/u": Store(1, files=known)}, meters, log, TaskMonitor(log, meters))
        try:
            await identity.start()
            while not names:
                await asyncio.sleep(0.01)
        finally:
            await identity.stop()
            server.close()
        assert (names[0], log.rows) == ("client", [])

    users_file = str(tmp_path / "users")
    Path(users_file).write_bytes(users(alice="first"))
    asyncio.run(asyncio.wait_for(scenario(), 10))
