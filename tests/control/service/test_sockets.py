"""The sockets of the API, real ones: who may open them, what each role may do, whom the audit rows name, certificates and their renewal."""

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory

from framegate.control.errors import StartError
from framegate.control.service import interceptor
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
    """A channel with a connection of its own."""
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


def test_a_caller_over_tcp_has_the_role_of_its_principal(tmp_path: Path, quick: None) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server = authority.leaf("server")
    people = {
        name: signer.leaf(name, uris=(f"spiffe://x/{name}",) if name != "none" else ())
        for name, signer in (("ada", authority), ("bob", authority), ("eve", authority), ("none", authority), ("mallory", stranger))
    }
    tcp = AdminTcp(
        address="127.0.0.1:0",
        certificate=server[0],
        key=server[1],
        client_ca=str(authority.path),
        principal=PrincipalConfig(from_="uri", rules=(r"RULE:spiffe:\/\/x\/(.*)/$1/",)),
        admin=("ada",),
        view=("RULE:ada|bob",),
    )

    def credentials(name: str) -> grpc.ChannelCredentials:
        certificate, key = (Path(path).read_bytes() for path in people[name]) if name else (None, None)
        return grpc.ssl_channel_credentials(authority.path.read_bytes(), key, certificate)

    async def body(at: Serving, addresses: dict[str, str]) -> None:
        address = str(at.service.tcp_address).replace("127.0.0.1", "localhost")
        answers = {"ada": (OK, OK), "bob": (OK, DENIED), "eve": (DENIED, DENIED), "none": (DENIED, DENIED)}
        unavailable = grpc.StatusCode.UNAVAILABLE
        for name, expected in {**answers, "mallory": (unavailable, unavailable), "": (unavailable, unavailable)}.items():
            async with connected(address, credentials(name)) as channel:
                stub = ChannelServiceStub(channel)
                found = [await call.code() for call in (stub.ListChannels(pb2.ListChannelsRequest()), stub.MuteChannels(MUTE))]
                assert found == list(expected), name
        (row,) = at.plane.audits
        assert (row["who"], row["role"], len(row["certificate"]), row["address"].partition(":")[0]) == ("ada", "admin", 64, "127.0.0.1")
        async with connected(address) as channel:
            assert await code_of(ChannelServiceStub(channel).MuteChannels(MUTE)) is unavailable, "without TLS"

        async def serial() -> int:
            _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]), ssl=insecure())
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.close()
            return hash(certificate)

        first = await serial()
        for old, new in zip(server, authority.leaf("renewed"), strict=True):
            os.replace(new, old)
        second = await serial()
        Path(server[0]).write_text("broken")
        assert first != second == await serial(), "the last good one goes on"

    run(tmp_path, body, tcp)


def insecure() -> Any:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_connections_above_the_bound_are_closed_and_the_others_go_on(tmp_path: Path) -> None:
    async def body(at: Serving, addresses: dict[str, str]) -> None:
        path = addresses["view"].removeprefix("unix:")
        held = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS)]
        assert all([await reader.read(1) for reader, _ in held]), "gRPC speaks first"
        further = await asyncio.open_unix_connection(path)
        assert await further[0].read() == b""
        for _, each in [*held, further]:
            each.close()
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest())
        async with connected(addresses["view"]) as channel:
            await ChannelServiceStub(channel).ListChannels(pb2.ListChannelsRequest(), wait_for_ready=True)

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
