"""The sockets of the API, real ones: who may open them, what each role may do, whom the audit rows name, certificates and their renewal."""

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf import descriptor_pool, message_factory

from framegate.control.errors import StartError
from framegate.control.files import read
from framegate.control.service import interceptor, relay
from framegate.control.service.access import METHODS
from framegate.control.service.peers import ROLES
from framegate.control.service.relay import MAX_CONNECTIONS
from framegate.control.service.sockets import Sockets
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.proxy.config.model import AdminConfig, AdminTcp, RoleSocket
from framegate.proxy.config.tls import PrincipalConfig
from tests.control.service.served import code_of, failure_of, refused
from tests.fakes.certificates import Authority
from tests.fakes.privileges import everybodys_folder, unprivileged
from tests.fakes.serving import Serving, serving

MUTE = pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(filter="listener=kafka"), reason="incident 7")
DENIED, OK = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.OK
NOBODY = 65534
ROOTS = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
CHILD = """
import os, sys
import grpc
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
grpc.insecure_channel("unix:none").close()  # imports the rest, which the other user may not be able to read
os.setgroups([]); os.setresgid(65533, 65533, 65533); os.setresuid(65534, 65534, 65534)
with grpc.insecure_channel(sys.argv[1]) as channel:
    ChannelServiceStub(channel).MuteChannels(pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(filter="listener=kafka"), reason="me"), timeout=20)
print(os.getpid())
"""


def run(folder: Path, body: Callable[[Serving, dict[str, str]], Awaitable[None]], tcp: AdminTcp | None = None, mode: str = "0666") -> None:
    """Run a test with a service that has all sockets; it gets their addresses by role."""
    made = {role: RoleSocket(address=f"unix:{folder}/{role}.sock", mode=mode) for role in ("operate", "view")}
    admin = AdminConfig(address=f"unix:{folder}/admin.sock", tcp=tcp, **made)

    async def main() -> None:
        async with serving(admin=admin) as at:
            addresses = {role: item.address for role, item in admin.sockets.items()}
            await asyncio.wait_for(body(at, addresses), 30)

    asyncio.run(main())
    assert [path.name for path in folder.iterdir() if path.is_socket()] == []


@pytest.fixture(name="quick")
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "_REFUSAL_S", 0.0)


@contextlib.asynccontextmanager
async def connected(address: str, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[grpc.aio.Channel]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    made = grpc.aio.insecure_channel(address, options) if credentials is None else grpc.aio.secure_channel(address, credentials, options)
    async with made as channel:
        yield channel


def test_each_role_may_call_its_methods_and_no_others_and_is_told_which_socket_has_them(tmp_path: Path, quick: None) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        wrong = []
        for role, address in addresses.items():
            async with connected(address) as channel:
                for name, access in METHODS.items():
                    service, _, method = name.partition("/")
                    kind: Any = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
                    request = message_factory.GetMessageClass(kind.input_type)()
                    try:
                        if kind.server_streaming:
                            stream = channel.unary_stream(f"/{name}")(request.SerializeToString())
                            await stream.read()
                            stream.cancel()
                        else:
                            await channel.unary_unary(f"/{name}")(request.SerializeToString())
                        code, text = grpc.StatusCode.OK, ""
                    except grpc.aio.AioRpcError as error:
                        code, text = error.code(), str(error.details())
                    may = ROLES[role] >= access.role
                    needed = next(address for other, address in reversed(addresses.items()) if ROLES[other] >= access.role)
                    if may == (code is DENIED) or (not may and not text.endswith(f"the socket {needed} has it")):
                        wrong.append((role, name, code, text))
        assert wrong == []
        assert {row["role"] for row in at.plane.audits} == {"admin", "operate"}

    run(tmp_path, body)


def test_an_unknown_method_is_refused_of_every_role_and_reflection_is_for_all(tmp_path: Path, quick: None) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        for address in addresses.values():
            async with connected(address) as channel:
                assert await refused(channel.unary_unary("/a.B/C")(b"")) == (grpc.StatusCode.UNIMPLEMENTED, "METHOD_UNKNOWN", [])
                call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")()
                await call.write(b"")
                assert await call.read() is not grpc.aio.EOF
                call.cancel()

    run(tmp_path, body)


def test_sockets_have_their_mode_and_group_and_only_they_and_the_locks_are_files(tmp_path: Path) -> None:
    config = AdminConfig(
        address=f"unix:{tmp_path}/new/admin.sock",
        operate=RoleSocket(address=f"unix:{tmp_path}/new/operate.sock", mode="0660", group=str(os.getegid())),
        view=RoleSocket(address=f"unix:{tmp_path}/new/view.sock", mode="0666"),
    )

    async def main() -> None:
        async with serving(admin=config) as at:
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
            assert found == {"admin.sock": 0o600, "operate.sock": 0o660, "view.sock": 0o666, **dict.fromkeys(LOCKS, 0o600)}
            assert (tmp_path / "new/operate.sock").stat().st_gid == os.getegid()
            assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o711
            await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest())

    asyncio.run(main())
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(LOCKS)
    with pytest.raises(StartError) as caught:
        Sockets(AdminConfig(address=f"unix:{tmp_path}/admin.sock", group="no such group"))
    assert caught.value.reason == "ADMIN_ADDRESS_UNUSABLE"


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # with an empty SETTINGS, as a client begins
LOCKS = [f"{role}.sock.lock" for role in ROLES]


@ROOTS
def test_another_user_opens_what_the_mode_lets_in_and_rows_name_user_group_and_process(quick: None) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        os.chmod(addresses["admin"].removeprefix("unix:"), 0o600)
        with unprivileged(), socket.socket(socket.AF_UNIX) as sock, pytest.raises(PermissionError):
            sock.connect(addresses["admin"].removeprefix("unix:"))
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, addresses["operate"], stdout=subprocess.PIPE)
        out, _ = await child.communicate()
        async with connected(addresses["operate"]) as channel:
            await ChannelServiceStub(channel).MuteChannels(MUTE)
        assert child.returncode == 0
        first, second = at.plane.audits
        assert (first["uid"], first["gid"], first["pid"], first["who"], first["reason"]) == (NOBODY, 65533, int(out), "nobody", "me")
        assert (second["uid"], second["pid"], second["who"], second["role"]) == (0, os.getpid(), "root", "operate")

    with everybodys_folder() as folder:
        run(folder, body)


class Callers:
    """Clients of the API over TCP, each with a certificate; ada has the role admin, bob the role view."""

    def __init__(self, folder: Path) -> None:
        self.authority, stranger = Authority(folder), Authority(folder, "stranger")
        self.trusted = self.authority.path.read_bytes()
        self.server = self.authority.leaf("server")
        self.people = {
            name: signer.leaf(name, uris=(f"spiffe://x/{name}",) if name != "none" else ())
            for name, signer in (*((name, self.authority) for name in ("ada", "bob", "eve", "none")), ("mallory", stranger))
        }
        self.revoked = self.authority.revocations()
        self.tcp = AdminTcp(
            address="127.0.0.1:0",
            certificate=self.server[0],
            key=self.server[1],
            client_ca=str(self.authority.path),
            crl=(self.revoked,),
            principal=PrincipalConfig(from_="uri", rules=(r"RULE:spiffe:\/\/x\/(.*)/$1/",)),
            admin=("ada",),
            view=("RULE:ada|bob",),
        )

    def connected(self, at: Serving, name: str) -> contextlib.AbstractAsyncContextManager[grpc.aio.Channel]:
        certificate, key = (Path(path).read_bytes() for path in self.people[name]) if name else (None, None)
        credentials = grpc.ssl_channel_credentials(self.trusted, key, certificate)
        return connected(str(at.service.tcp_address).replace("127.0.0.1", "localhost"), credentials)

    async def reload(self, at: Serving) -> list[str]:
        """What is wrong with the files that are watched; otherwise they are in force."""
        (source,) = at.plane.parts.rotation.sources  # type: ignore[attr-defined]
        found = read(source.paths)
        assert isinstance(found, dict)
        return [str(refusal) for refusal in (await source.reloader.take({source.owner: found})).values()]


async def listed(channel: grpc.aio.Channel) -> grpc.StatusCode:
    return await ChannelServiceStub(channel).ListChannels(pb2.ListChannelsRequest(), timeout=10).code()


def test_a_caller_over_tcp_has_the_role_of_its_principal(tmp_path: Path, quick: None) -> None:
    callers = Callers(tmp_path)
    unavailable = grpc.StatusCode.UNAVAILABLE

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        answers = {"ada": (OK, OK), "bob": (OK, DENIED), "eve": (DENIED, DENIED), "none": (DENIED, DENIED)}
        for name, expected in {**answers, "mallory": (unavailable, unavailable), "": (unavailable, unavailable)}.items():
            async with callers.connected(at, name) as channel:
                assert (await listed(channel), await ChannelServiceStub(channel).MuteChannels(MUTE).code()) == expected, name
        (row,) = at.plane.audits
        assert (row["who"], row["role"], len(row["certificate"]), row["address"].partition(":")[0]) == ("ada", "admin", 64, "127.0.0.1")
        async with connected(str(at.service.tcp_address)) as channel:
            assert await code_of(ChannelServiceStub(channel).MuteChannels(MUTE)) is unavailable, "without TLS"

        async def serial() -> int:
            _, writer = await asyncio.open_connection(*str(at.service.tcp_address).split(":"), ssl=insecure())
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.close()
            return hash(certificate)

        first = await serial()
        async with callers.connected(at, "bob") as channel:
            watched = await watching(channel)
            for old, new in zip(callers.server, callers.authority.leaf("renewed"), strict=True):
                os.replace(new, old)
            assert await callers.reload(at) == []
            second = await serial()
            Path(callers.server[0]).write_text("broken")
            assert len(await callers.reload(at)) == 1
            assert first != second == await serial(), "the last good one goes on"
            assert not watched.done(), "another certificate of the server changes nothing for who is connected"

    run(tmp_path, body, callers.tcp)


async def watching(channel: grpc.aio.Channel) -> Any:
    """A stream of rows that has begun."""
    call = channel.unary_stream("/framegate.control.v1.EventService/WatchEvents")(b"")
    await call.read()
    return call


def test_open_connections_end_when_their_certificate_is_revoked_or_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(tmp_path)

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        async with callers.connected(at, "ada") as ada, callers.connected(at, "bob") as bob:
            watched = await watching(ada)
            assert await listed(bob) is OK
            os.replace(callers.authority.revocations(callers.people["ada"][0]), callers.revoked)
            assert await callers.reload(at) == []
            assert await watched.code() is grpc.StatusCode.UNAVAILABLE
            assert (await listed(ada), await listed(bob)) == (grpc.StatusCode.UNAVAILABLE, OK)
        ends = x509.load_pem_x509_certificate(Path(callers.people["bob"][0]).read_bytes()).not_valid_after_utc
        monkeypatch.setattr(relay, "time", SimpleNamespace(time=lambda: ends.timestamp() - 0.5))
        async with callers.connected(at, "bob") as bob:
            assert await (await watching(bob)).code() is grpc.StatusCode.UNAVAILABLE, "it has ended half a second later"

    run(tmp_path, body, callers.tcp)


def test_who_could_connect_again_stays_connected_when_authorities_or_revocation_lists_change(tmp_path: Path) -> None:
    callers = Callers(tmp_path)
    root = Authority(tmp_path, "root")
    between = Authority(tmp_path, "between", root)
    callers.people["ivy"] = between.leaf("ivy", uris=("spiffe://x/bob",))
    with open(callers.people["ivy"][0], "ab") as file:
        file.write(between.path.read_bytes())
    own, mine, others = callers.authority, callers.trusted, root.path.read_bytes()
    renewed = own._builder(own._name, own._key.public_key(), signs=True).sign(own._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def lists(by_own: Sequence[str] = (), by_root: Sequence[str] = (), by_between: Sequence[str] = ()) -> bytes:
        made = (own.revocations(*by_own), root.revocations(*by_root), between.revocations(*by_between))
        return b"".join(Path(path).read_bytes() for path in made)

    ada, bob, ivy = (callers.people[name][0] for name in ("ada", "bob", "ivy"))
    cases = [
        ("lists are renewed", mine + others, lists(), {"ada", "bob", "ivy"}),
        ("a certificate is revoked", mine + others, lists([ada]), {"bob", "ivy"}),
        ("one below another authority is", mine + others, lists(by_between=[ivy]), {"ada", "bob"}),
        ("an authority is", mine + others, lists(by_root=[str(between.path)]), {"ada", "bob"}),
        ("an authority has no list", mine + others, Path(own.revocations()).read_bytes(), {"ada", "bob"}),
        ("another one is added", mine + others + Authority(tmp_path, "more").path.read_bytes(), lists(), {"ada", "bob", "ivy"}),
        ("one goes", others, lists(), {"ivy"}),
        ("one is renewed", renewed + others, lists([bob]), {"ada", "ivy"}),
        ("a root goes, and what it signed stays", mine + between.path.read_bytes(), lists(), {"ada", "bob"}),
    ]

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        async def change(authorities: bytes, revoked: bytes) -> None:
            own.path.write_bytes(authorities)
            Path(callers.revoked).write_bytes(revoked)
            assert await callers.reload(at) == []

        async def stays(authorities: bytes, revoked: bytes) -> tuple[set[str], set[str]]:
            """Who is connected after a change, and who can connect again."""
            await change(mine + others, lists())
            async with contextlib.AsyncExitStack() as stack:
                calls = {each: await watching(await stack.enter_async_context(callers.connected(at, each))) for each in ("ada", "bob", "ivy")}
                await change(authorities, revoked)
                await asyncio.sleep(0.05)
                again = set()
                for each in calls:
                    async with callers.connected(at, each) as channel:
                        again |= {each} if await listed(channel) is OK else set()
                found = {each for each, call in calls.items() if not call.done()}
                for call in calls.values():
                    call.cancel()
            return found, again

        wrong = {}
        for name, authorities, revoked, expected in cases:
            found, again = await stays(authorities, revoked)
            if (found, again) != (expected, expected):
                wrong[name] = (found, again)
        assert not wrong
        (source,) = at.plane.parts.rotation.sources  # type: ignore[attr-defined]

        async def broken(question: Any) -> Any:
            raise RuntimeError("it ended")

        source.reloader._ask = broken
        assert await stays(mine + others, lists([ada])) == (set(), {"bob", "ivy"}), "nobody can say who is revoked"

    run(tmp_path, body, callers.tcp)


def test_who_does_not_finish_a_handshake_or_has_no_role_takes_no_connection_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(relay, "MAX_CONNECTIONS", 1)
    callers = Callers(tmp_path)

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        silent = [await asyncio.open_connection(*str(at.service.tcp_address).split(":")) for _ in range(12)]
        async with callers.connected(at, "eve") as eve, callers.connected(at, "none") as none, callers.connected(at, "bob") as bob:
            assert await listed(eve) is DENIED
            assert await listed(none) is grpc.StatusCode.UNAVAILABLE, "another caller without a role is connected"
            assert await listed(bob) is OK
        assert [await reader.read() for reader, _ in silent[:8]] == [b""] * 8, "the oldest ones gave way"
        for _, writer in silent:
            writer.close()

    run(tmp_path, body, callers.tcp)


def insecure() -> Any:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_connections_above_the_bound_are_closed_and_the_others_go_on(tmp_path: Path) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        path = addresses["view"].removeprefix("unix:")
        held = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(HTTP2_PREFACE)
        assert all([await reader.read(1) for reader, _ in held]), "gRPC answers each"
        further = await asyncio.open_unix_connection(path)
        assert await further[0].read() == b""
        for _, each in [*held, further]:
            each.close()
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest())
        async with connected(addresses["view"]) as channel:
            await ChannelServiceStub(channel).ListChannels(pb2.ListChannelsRequest(), wait_for_ready=True)

    run(tmp_path, body)


def test_the_watchers_of_one_role_take_no_place_from_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "MAX_WATCHERS", 2)

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        async with connected(addresses["view"]) as view, connected(addresses["admin"]) as admin:
            watched = [await watching(channel) for channel in (view, view, admin, admin)]
            for channel in (view, admin):
                more = channel.unary_stream("/framegate.control.v1.EventService/WatchEvents")(b"")
                assert (await refused(more.read()))[1] == "TOO_MANY_WATCHERS"
            for call in watched:
                assert not call.done()
                call.cancel()

    run(tmp_path, body)


def test_a_flood_of_refused_calls_is_answered_slowly_and_its_cancelled_calls_leave_nothing(tmp_path: Path) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(connected(addresses["view"])) for _ in range(8)]
            calls = [ChannelServiceStub(channels[number % 8]).MuteChannels(MUTE, timeout=1.0 if number % 2 else None) for number in range(200)]
            waiting = [asyncio.ensure_future(failure_of(call)) for call in calls]
            done, _ = await asyncio.wait(waiting, timeout=0.9)
            assert interceptor._REFUSALS <= len(done) <= interceptor._REFUSALS + 10
            await ChannelServiceStub(at.channel).MuteChannels(MUTE)
            for call in calls:
                call.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert [row["role"] for row in at.plane.audits] == ["admin"]

    run(tmp_path, body)
