"""Authentication in the control process: the files of listeners, the API versions of upstreams, and requests of processors."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from framegate.control.errors import StartError
from framegate.control.fleet import identity as module
from framegate.control.fleet.child import Child
from framegate.control.fleet.identity import AuthRequests, Identity
from framegate.control.identity.auth_responder import AuthResponder, IdentityFileError
from framegate.control.identity.auth_worker_pool import AuthWorkerPool
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import UsersFile
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.auth_requests import Accepted, AuthRequest, AuthResponse, Refused, Secret, Unavailable, WantSecret
from framegate.proxy.auth.messages import ApiRange
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.config.tls import UpstreamTls
from framegate.proxy.server.messages import ForgetNotice, QuestionNotice
from framegate.proxy.server.rows import Store
from tests.fakes.fleet import MemoryLog, until
from tests.fakes.sasl_frames import known_apis, versions_answer
from tests.fakes.scenario import run_by
from tests.fakes.tls import TlsWorld


def users(**passwords: str) -> bytes:
    made = UsersFile()
    for name, password in passwords.items():
        made.add(name, new_credentials(password, iterations=4096))
    return made.text().encode()


class Process:
    """What receives responses in the place of a child: keeps the messages."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.link = self

    def post(self, message: Any) -> None:
        self.told.append(message)


def child(process: Process) -> Child:
    return cast(Child, process)


class Rig(Process):
    """Two listeners with SASL, one behind a handler, and a process that asks."""

    def __init__(self, folder: Path) -> None:
        self.file, self.secret = folder / "users", folder / "ours"
        self.log, self.meters = MemoryLog(), Meters()
        sasl = ListenerSasl(mechanisms=("PLAIN",), users=str(self.file))
        self.config = ProxyConfig(
            node="n",
            listeners=(
                ListenerConfig(name="a", address="x", upstream="u", protocol="kafka", sasl=sasl),
                ListenerConfig(name="h", address="x", handler="m:h", protocol="kafka", sasl=sasl),
                ListenerConfig(name="open", address="x", upstream="u"),
            ),
            upstreams=(
                UpstreamConfig(
                    name="u", endpoints=("127.0.0.1:1",), sasl=UpstreamSasl(mechanism="PLAIN", user="gate", password_file=str(self.secret))
                ),
            ),
        )
        self.identity = Identity(lambda: {"u": []}, dict, self.meters, self.log, TaskMonitor(self.log, self.meters))
        super().__init__()
        self.asked = 0

    async def ask(self, kind: str, auth_queue: str = "listener:a", **row: Any) -> tuple[str, dict[str, Any]]:
        """What a question of a processor's is answered with."""
        self.asked += 1
        notice = QuestionNotice(type="question", number=self.asked, queue=auth_queue, address="", kind=kind, row=row)
        self.identity.auth_requests.hear(child(self), notice)
        while not self.told:
            await asyncio.sleep(0.001)
        (answer,) = self.told
        self.told.clear()
        return answer["kind"], answer["row"]

    async def is_password(self, password: str, auth_queue: str = "listener:a") -> bool:
        return (await self.ask("CheckPassword", auth_queue, user="alice", password=password))[0] == "Accepted"


def run(scenario: Callable[["Rig"], Awaitable[None]], data: bytes | None = None) -> None:
    async def main(folder: Path) -> None:
        rig = Rig(folder)
        rig.file.write_bytes(users(alice="first") if data is None else data)
        try:
            async with asyncio.timeout(10):
                staged = await rig.identity.stage(rig.config)
                assert staged.contents == {name: {str(rig.file): rig.file.read_bytes()} for name in "ah"}
                rig.identity.follow(staged)
                await scenario(rig)
        finally:
            await rig.identity.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@run_by(run)
async def test_our_own_secrets_are_read_each_time_they_are_asked_for(rig: Rig) -> None:
    for text in ("first", "second"):
        rig.secret.write_text(text + "\n")
        assert await rig.ask("WantSecret", "upstream:u", credential="u") == ("Secret", {"text": text})
    assert (await rig.ask("WantSecret", "upstream:u", credential="v"))[1] == {"reason": "there is no credential 'v'"}
    rig.secret.unlink()
    kind, row = await rig.ask("WantScramKeys", "upstream:u", credential="u", mechanism="SCRAM-SHA-256", salt="00", iterations=4096)
    assert (kind, row["reason"]) == ("Unavailable", f"{rig.secret} cannot be read: No such file or directory")


@run_by(run)
async def test_each_listener_answers_from_its_files(rig: Rig) -> None:
    assert await rig.is_password("first")
    assert await rig.is_password("first", "listener:h")
    assert not await rig.is_password("other")
    assert (await rig.ask("SupportedApis", "listener:h", version=3))[1] == {"answer": known_apis().answer.hex()}
    kind, row = await rig.ask("SupportedApis", version=3)
    assert (kind, row["reason"].partition(":")[0]) == ("Unavailable", "what the upstream u understands is not known")
    assert (await rig.ask("SupportedApis", "listener:open", version=3))[1] == {"reason": "there is no queue listener:open"}
    assert (rig.identity.files("a"), rig.identity.files("open")) == ({"sasl": str(rig.file)}, {})


@run_by(run)
async def test_new_contents_are_used_for_later_requests_if_they_are_valid(rig: Rig) -> None:
    rig.identity.take("a", {str(rig.file): users(alice="second")})
    assert [await rig.is_password("first"), await rig.is_password("second")] == [False, True]
    assert await rig.is_password("first", "listener:h"), "another listener's"
    with pytest.raises(IdentityFileError):
        rig.identity.take("a", {str(rig.file): b"nonsense"})
    assert await rig.is_password("second")


def test_a_file_that_is_not_valid_fails_the_start(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        raise AssertionError("it has not started")

    with pytest.raises(StartError, match="users: is no file of users: line 1"):
        run(scenario, b"nonsense")


def test_an_upstream_is_asked_with_the_certificates_in_force_and_not_those_in_its_files(tmp_path: Path, tls_world: TlsWorld) -> None:
    (tmp_path / "tls").mkdir()
    paths = {"ca": str(tmp_path / "ca.crt"), "certificate": str(tmp_path / "tls.crt"), "key": str(tmp_path / "tls.key")}  # none of them is there
    known = dict(zip(paths.values(), (Path(path).read_text("latin-1") for path in (tls_world.authority, *tls_world.client)), strict=True))

    async def scenario() -> None:
        names: list[str] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            names.append(dict(item[0] for item in writer.get_extra_info("peercert")["subject"])["commonName"])
            body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            answer = versions_answer(body[3], ApiRange(3, 0, 12), correlation=int.from_bytes(body[4:8], "big"))
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls_world.server_settings(client_auth="required").context)
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
        identity = Identity(lambda: {"u": [address]}, lambda: {"upstream/u": Store(1, files=known)}, meters, log, TaskMonitor(log, meters))
        try:
            identity.follow(await identity.stage(config))
            while not names:
                await asyncio.sleep(0.01)
        finally:
            await identity.stop()
            server.close()
        assert (names[0], log.rows) == ("client", [])

    users_file = str(tmp_path / "users")
    Path(users_file).write_bytes(users(alice="first"))
    asyncio.run(asyncio.wait_for(scenario(), 10))


# Requests of processors.


class Slow(AuthResponder):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.asked: list[str] = []

    def answer(self, auth_request: AuthRequest, address: str = "") -> AuthResponse:
        assert isinstance(auth_request, WantSecret)
        self.asked.append(auth_request.credential)
        assert self.let.wait(5)
        return Secret(auth_request.credential)


def asked(number: int, credential: str = "c", queue: str = "upstreams") -> QuestionNotice:
    return QuestionNotice(type="question", number=number, queue=queue, address="", kind="WantSecret", row={"credential": credential})


def answered(number: int, text: str = "c") -> dict[str, Any]:
    return {"type": "answer", "number": number, "kind": "Secret", "row": {"text": text}}


def run_requests(scenario: Callable[[AuthRequests, Slow, AuthWorkerPool], Awaitable[None]], queue: int = 10) -> Meters:
    meters, slow = Meters(), Slow()

    async def main() -> None:
        auth_pool = AuthWorkerPool({"upstreams": slow}, lambda error: None, threads=1, queue=queue)
        try:
            async with asyncio.timeout(5):
                await scenario(AuthRequests(auth_pool, meters), slow, auth_pool)
        finally:
            slow.let.set()
            await asyncio.to_thread(auth_pool.close)

    asyncio.run(main())
    return meters


def test_each_process_gets_its_own_answers() -> None:
    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        one, other = Process(), Process()
        auth_requests.hear(child(one), asked(1, "a"))
        auth_requests.hear(child(other), asked(1, "b"))
        auth_requests.hear(child(one), asked(2, "c"))
        assert (auth_requests.count(child(one)), one.told) == (2, [])
        slow.let.set()
        await until(lambda: len(one.told) == 2 and other.told)
        assert (one.told, other.told) == ([answered(1, "a"), answered(2, "c")], [answered(1, "b")])
        assert auth_requests.count(child(one)) == auth_requests.count(child(other)) == 0

    assert run_requests(scenario).value("authentication.questions.refused") == 0


@run_by(run_requests)
async def test_requests_that_a_process_withdraws_or_leaves_are_withdrawn(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
    one, other, last = Process(), Process(), Process()
    auth_requests.hear(child(one), asked(1, "begun"))
    await until(lambda: slow.asked)
    auth_requests.hear(child(one), asked(2, "forgotten"))
    auth_requests.hear(child(other), asked(1, "dead"))
    auth_requests.hear(child(last), asked(1, "wanted"))
    auth_requests.hear(child(one), ForgetNotice(type="forget", number=2))
    auth_requests.hear(child(one), ForgetNotice(type="forget", number=1))
    auth_requests.hear(child(one), ForgetNotice(type="forget", number=7))
    auth_requests.forget(child(other))
    auth_requests.forget(child(other))
    assert auth_pool.waiting == 1
    slow.let.set()
    await until(lambda: last.told)
    assert (slow.asked, one.told, other.told) == (["begun", "wanted"], [], [])


def test_a_request_that_the_pool_does_not_take_is_unavailable_at_once_and_counted() -> None:
    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        one = Process()
        auth_requests.hear(child(one), asked(1))
        await until(lambda: slow.asked)
        auth_requests.hear(child(one), asked(2))
        auth_requests.hear(child(one), asked(3))
        auth_requests.hear(child(one), asked(4, queue="nobody"))
        unavailable = [(row["number"], row["kind"], row["row"]["reason"]) for row in one.told]
        assert unavailable == [
            (3, "Unavailable", "1 requests wait in the queue upstreams, 1 of them of this address"),
            (4, "Unavailable", "there is no queue nobody"),
        ]
        assert auth_requests.count(child(one)) == 2

    meters = run_requests(scenario, queue=2)
    assert meters.value("authentication.questions.refused") == 2
    assert meters.snapshot()["framegate.authentication.questions.waiting", ()] == 0


def test_a_refusal_without_work_is_delayed_and_a_known_result_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER_S", (0.05, 0.05))
    found: dict[str, AuthResponse] = {"known": Accepted("u"), "wrong": Refused("wrong password"), "often": Unavailable("not tried")}

    def check(number: int, password: str) -> QuestionNotice:
        row = {"user": "u", "password": password}
        return QuestionNotice(type="question", number=number, queue="upstreams", address="a", kind="CheckPassword", row=row)

    async def scenario(auth_requests: AuthRequests, slow: Slow, auth_pool: AuthWorkerPool) -> None:
        slow.at_once = lambda auth_request, address: found[auth_request.password]  # type: ignore[method-assign, union-attr]
        one, other = Process(), Process()
        for number, password in enumerate(found):
            auth_requests.hear(child(one), check(number, password))
            auth_requests.hear(child(other), check(number, password))
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted")]
        assert auth_requests.count(child(one)) == 2
        auth_requests.hear(child(one), {"type": "forget", "number": 1})
        auth_requests.forget(child(other))
        await until(lambda: len(one.told) == 2)
        await asyncio.sleep(0.06)
        assert [(row["number"], row["kind"]) for row in one.told] == [(0, "Accepted"), (2, "Unavailable")]
        assert len(other.told) == 1

    run_requests(scenario)
