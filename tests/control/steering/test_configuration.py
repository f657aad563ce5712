"""framegate.control.steering.configuration: a whole configuration is in force everywhere or nowhere, while real processors serve."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from framegate.control.configuration.child import Loaded
from framegate.control.configuration.tls_files import describe_files, read_tls_files
from framegate.control.errors import AbortedError, ControlError, EtagError, FailedPreconditionError, UnavailableError
from framegate.control.fleet import handler_process, two_phases
from framegate.control.fleet.processor import COMMAND
from framegate.control.identity.users_file import changing
from framegate.control.steering.configuration import Applied
from framegate.control.telemetry.export import Export
from framegate.proxy.cells import LISTENER
from framegate.proxy.config.model import (
    MIB,
    BrokersConfig,
    DrainConfig,
    HandlersConfig,
    KafkaCluster,
    ListenerConfig,
    ListenerTimeouts,
    ListenerTls,
    MemoryPoolConfig,
    OtlpConfig,
    PrometheusConfig,
    ProxyConfig,
    RotationConfig,
    TelemetryConfig,
    UpstreamConfig,
)
from framegate.proxy.config.sasl import ListenerSasl
from tests.fakes.brokers import FakeBroker
from tests.fakes.certificates import Authority
from tests.fakes.fleet import ECHO, Client, Fleet, facts, fleet, fleet_config, until
from tests.fakes.ports import free_port, free_ports
from tests.fakes.sasl_frames import handshake, plain_token, stored, token
from tests.fakes.scenario import run_by
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import ScriptedUpstream

DRAIN = DrainConfig(timeout_ms=500, quiet_ms=50)


class Live(Fleet):
    """Real processors in front of an echo; ``other`` is another one."""

    def __init__(self, processors: int, upstream: ScriptedUpstream, other: ScriptedUpstream) -> None:
        self.other = UpstreamConfig(name="v", endpoints=(other.address,))
        config = dataclasses.replace(fleet_config(processors), drain=DRAIN)
        super().__init__(config, command=COMMAND, endpoint=("127.0.0.1", upstream.port), handlers=handler_process.COMMAND)

    @property
    def config(self) -> ProxyConfig:
        return self.desired.config

    async def apply(self, config: ProxyConfig, **how: Any) -> Applied:
        files = read_tls_files(config)
        return await self.steering.configuration.apply(Loaded(config, [], files, describe_files(files)), **how)

    def added(self, *names: str, **given: Any) -> ProxyConfig:
        """The configuration in force, with further listeners in front of ``other``."""
        more = tuple(ListenerConfig(**{"name": name, "address": "127.0.0.1:0", "upstream": "v", "max_receive_size": MIB, **given}) for name in names)
        return dataclasses.replace(self.config, listeners=(*self.config.listeners, *more), upstreams=(self.config.upstreams[0], self.other))

    def port(self, listener: str) -> int:
        return self.acceptor.listeners[listener].port

    async def answers(self, listener: str, times: int = 4) -> bool:
        """Whether new connections of a listener are served, by every processor."""
        for number in range(times):
            client = await self.connect(listener)
            body = b"%d" % number
            if await client.echo(len(body).to_bytes(4, "big") + body) != len(body).to_bytes(4, "big") + body:
                return False
            await client.close()
        return True


@contextlib.asynccontextmanager
async def live(processors: int = 2) -> AsyncIterator[Live]:
    with ScriptedUpstream() as upstream, ScriptedUpstream() as other:
        made = Live(processors, upstream, other)
        try:
            async with asyncio.timeout(60):
                await made.supervisor.start_slots(range(processors))
                made.acceptor.start()
                made.steering.state.serving = True
                yield made
        finally:
            await made.close()


def run(scenario: Callable[..., Awaitable[None]], processors: int = 2) -> None:
    async def main() -> None:
        async with live(processors) as made:
            await scenario(made)

    asyncio.run(main())


def run_fake(scenario: Callable[[Fleet], Awaitable[None]], processors: int = 2, mode: str = "") -> None:
    async def main() -> None:
        async with fleet(processors, mode) as made:
            await scenario(made)

    asyncio.run(main())


def watched(made: Fleet) -> dict[tuple[str, str], tuple[str, ...]]:
    """The files of listeners and upstreams that are watched, by owner and kind."""
    return {key: item.source.paths for key, item in made.rotation._watched.items() if "/" in key[0]}


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def reaches(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def refused(made: Fleet, config: ProxyConfig, kind: type[ControlError], reason: str, **how: Any) -> ControlError:
    """Apply what cannot be; nothing has changed then."""
    before, revision = made.desired.config, made.desired.revision
    listeners, layout = dict(made.acceptor.listeners), made.desired.layout
    with pytest.raises(kind) as caught:
        await made.steering.configuration.apply(Loaded(config, [], {}, {}), **how)
    assert caught.value.reason == reason
    assert (made.desired.config, made.desired.revision, made.acceptor.listeners) == (before, revision, listeners)
    assert made.desired.layout is layout
    return caught.value


@run_by(run)
async def test_listeners_come_change_and_go_and_open_connections_go_on(made: Live) -> None:
    before = await made.connect("a")
    applied = await made.apply(made.added("b"))
    assert [item.path for item in applied.differences] == ["listeners[b]", "upstreams[v]"]
    assert await made.answers("b")
    assert await before.echo(b"\0\0\0\1x") == b"\0\0\0\1x"
    kept = await made.connect("b")
    assert await kept.echo(b"\0\0\0\1w") == b"\0\0\0\1w", "a processor has it"
    short = dataclasses.replace(made.config.listeners[1], timeouts=ListenerTimeouts(idle_ms=1_000), max_receive_size=2 * MIB)
    await made.apply(dataclasses.replace(made.config, listeners=(made.config.listeners[0], short)))
    fresh, port = await made.connect("b"), made.port("b")
    assert await fresh.reader.read(1) == b"", "its time without traffic is the new one"
    assert await kept.echo(b"\0\0\0\1y") == b"\0\0\0\1y", "and this one has the old one"
    assert made.supervisor.cells[0][1].cell("framegate.frame.size.limit", "b") == 2 * MIB
    await made.apply(dataclasses.replace(made.config, listeners=made.config.listeners[:1], upstreams=made.config.upstreams[:1]))
    await until(lambda: not made.acceptor.closing)
    assert not reaches(port)
    assert await kept.reader.read(1) == b"", "it is drained"
    await until(lambda: not made.acceptor.leaving and "b" not in made.desired.layout.names(LISTENER))
    assert [item.name for item in made.steering.listeners.statuses()] == ["a"]
    assert await before.echo(b"\0\0\0\1z") == b"\0\0\0\1z"
    (row,) = [row for row in made.events if row["event"] == "closed" and row["listener"] == "b" and row["cause"] == "drained"]
    assert row["detail"].startswith("its listener was removed")


@run_by(run)
async def test_an_address_moves_with_the_clients_that_wait_there_and_port_zero_stays(made: Live) -> None:
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    zero = made.port("a")
    both = made.added("b", "c")
    a, b, c = both.listeners
    one, other = dataclasses.replace(b, address=first), dataclasses.replace(c, address=second)
    await made.apply(dataclasses.replace(both, listeners=(a, one, other)))
    held = await made.connect("b")
    swapped = (a, dataclasses.replace(one, address=second), dataclasses.replace(other, address=first))
    await made.apply(dataclasses.replace(both, listeners=swapped))
    assert [made.acceptor.listeners[name].address for name in "bc"] == [second, first]
    for name in "abc":
        assert await made.answers(name)
    assert made.port("a") == zero
    assert await held.echo(b"\0\0\0\1x") == b"\0\0\0\1x"
    await until(lambda: made.acceptor.listeners["b"].open == 1)  # only it, which still counts at its listener
    await held.close()
    await until(lambda: made.steering.listeners.connections() == 0)


@run_by(run, 1)
async def test_a_unix_socket_can_come_move_and_go(made: Live, *, tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'here.sock'}"

    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(tmp_path / "here.sock"))
            sock.sendall(b"\0\0\0\1x")
            return sock.recv(5)

    config = made.added("b", address=address)
    await made.apply(config)
    assert await asyncio.to_thread(ask) == b"\0\0\0\1x"
    renamed = dataclasses.replace(config.listeners[1], name="c")
    await made.apply(dataclasses.replace(config, listeners=(config.listeners[0], renamed)))
    assert await asyncio.to_thread(ask) == b"\0\0\0\1x"
    await made.apply(dataclasses.replace(config, listeners=config.listeners[:1]))
    await until(lambda: not (tmp_path / "here.sock").exists())


@run_by(run, 1)
async def test_what_cannot_be_applied_changes_nothing_and_releases_what_was_bound(made: Live) -> None:
    taken, free = free_port(), free_port()
    with socket.create_server(("127.0.0.1", taken)):
        config = made.added("b", address=f"127.0.0.1:{free}")
        busy = dataclasses.replace(config.listeners[1], name="c", address=f"127.0.0.1:{taken}")
        both = dataclasses.replace(config, listeners=(*config.listeners, busy))
        error = await refused(made, both, FailedPreconditionError, "LISTENER_ADDRESS_UNUSABLE")
        assert (error.metadata["listener"], reaches(free)) == ("c", False)
    await refused(made, dataclasses.replace(config, node="other"), FailedPreconditionError, "NEEDS_RESTART")
    await refused(made, config, EtagError, "ETAG_MISMATCH", etag="beef")
    pool = dataclasses.replace(config, memory_pool=MemoryPoolConfig(size=MIB // 2))
    await refused(made, pool, FailedPreconditionError, "POOL_BELOW_MAX_RECEIVE_SIZE")
    handled = made.added("b", upstream=None, handler="nowhere:handle")
    await refused(made, handled, FailedPreconditionError, "HANDLER_START_FAILED")
    assert made.steering.state.handler_processes() == []
    revision, etag = made.desired.revision, made.steering.configuration.etag
    assert (await made.apply(made.config, etag=etag)).differences == ()
    shown = await made.apply(config, validate_only=True)
    assert [item.path for item in shown.differences] == ["listeners[b]", "upstreams[v]"]
    assert (made.desired.revision, reaches(free), made.steering.configuration.etag) == (revision, False, etag)
    made.acceptor.stop()
    await refused(made, config, FailedPreconditionError, "DRAINING")


@run_by(run)
async def test_handlers_come_change_and_go_with_processes_of_their_own(made: Live, *, tmp_path: Path) -> None:
    async def says(client: Client, body: bytes) -> bytes:
        return (await client.echo(len(body).to_bytes(4, "big") + body))[4:]

    def running() -> list[tuple[int, str]]:
        return [(item.slot, item.handlers[0].handler) for item in made.steering.state.handler_processes() if item.handlers]

    plain = await made.connect("a")
    await made.apply(made.added("b", upstream=None, handler=ECHO))
    assert running() == [(0, ECHO)]
    held = await made.connect("b")
    assert await says(held, b"one") == b"one"
    (tmp_path / "louder.py").write_text("def upper(frame, context):\n    return frame.upper()\n")
    other, (a, b) = "louder:upper", made.config.listeners
    listeners = a, dataclasses.replace(b, handler=other)
    await made.apply(dataclasses.replace(made.config, listeners=listeners, handlers=HandlersConfig(path=(str(tmp_path),))))
    assert running() == [(0, ECHO), (1, other)]
    fresh = await made.connect("b")
    assert await says(fresh, b"two") == b"TWO"
    assert await held.reader.read(1) == b"", "it is drained with its handler"
    await until(lambda: running() == [(1, other)])
    await made.apply(dataclasses.replace(made.config, listeners=made.config.listeners[:1]))
    assert await fresh.reader.read(1) == b""
    await until(lambda: running() == [])
    assert made.steering.state.health().ready
    assert await says(plain, b"three") == b"three"


@run_by(run)
async def test_certificates_come_change_and_go_with_their_listeners(made: Live, *, tmp_path: Path) -> None:
    world = TlsWorld.make(tmp_path)

    async def shown(listener: str) -> str:
        """The serial number of the certificate that a new client is shown."""

        def ask() -> str:
            context = ssl.create_default_context(cafile=world.authority)
            context.check_hostname = False
            with socket.create_connection(("127.0.0.1", made.port(listener)), 5) as sock, context.wrap_socket(sock) as tls:
                return str(cast(Any, tls.getpeercert())["serialNumber"])

        return await asyncio.to_thread(ask)

    await made.apply(made.added("b", tls=world.listener()))
    first = await shown("b")
    held = ssl.create_default_context(cafile=world.authority)
    held.check_hostname = False
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port("b"), ssl=held)
    (a, b) = made.config.listeners
    other = ListenerTls(certificate=world.client[0], key=world.client[1])
    await made.apply(dataclasses.replace(made.config, listeners=(a, dataclasses.replace(b, tls=other))))
    assert await shown("b") != first
    writer.write(b"\0\0\0\1x")
    assert await reader.readexactly(5) == b"\0\0\0\1x", "an open connection keeps the certificate that it was shown"
    writer.close()
    assert [(item.owner, item.store) for item in made.certificates.statuses(made.rotation)] == [("listener/b", 2)]
    assert watched(made) == {("listener/b", "tls"): world.client}
    await made.apply(dataclasses.replace(made.config, listeners=(a, dataclasses.replace(b, tls=None))))
    assert await made.answers("b")
    assert (watched(made), made.desired.stores, made.certificates.validity) == ({}, {}, {})


@run_by(run)
async def test_users_come_change_and_go_with_their_listeners(made: Live, *, tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file, password in zip(files, ("first", "second"), strict=True):
        with changing(file) as users:
            users.add("alice", {mechanism: stored(mechanism, password) for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")})

    async def lets_in(password: str) -> bool:
        client = await made.connect("b")
        await client.echo(framed(handshake("PLAIN", 1)))
        answer = await client.echo(framed(token(plain_token(password, "alice"), 2)))
        await client.close()
        return answer[9:11] == b"\0\0"

    sasl = [ListenerSasl(mechanisms=("PLAIN",), users=str(file)) for file in files]
    config = made.added("b", protocol="kafka", sasl=sasl[0])
    await made.apply(config)
    assert [await lets_in(password) for password in ("first", "second")] == [True, False]
    assert [item.name for item in (await made.steering.users.list("b")).users] == ["alice"]
    b = dataclasses.replace(config.listeners[1], sasl=sasl[1])
    await made.apply(dataclasses.replace(made.config, listeners=(config.listeners[0], b)))
    assert [await lets_in(password) for password in ("first", "second")] == [False, True]
    assert list(watched(made).values()) == [(str(files[1]),)]
    files[0].write_text("nonsense")
    assert "is no file of users" in str(await refused(made, config, FailedPreconditionError, "IDENTITY_FILE"))
    await made.apply(dataclasses.replace(made.config, listeners=(config.listeners[0], dataclasses.replace(b, sasl=None))))
    assert watched(made) == {}
    assert await made.answers("b")


def write_users(file: Path, *names: str) -> None:
    file.unlink(missing_ok=True)
    with changing(file) as users:
        for name in names:
            users.add(name, {"SCRAM-SHA-256": stored("SCRAM-SHA-256", name)})


async def logged_in(made: Live, user: str) -> Client | None:
    """A client of listener b whose password is its name; None: it is refused."""
    client = await made.connect("b")
    await client.echo(framed(handshake("PLAIN", 1)))
    return client if (await client.echo(framed(token(plain_token(user, user), 2))))[9:11] == b"\0\0" else None


@run_by(run)
async def test_users_that_are_gone_with_a_changed_section_end_and_others_go_on(made: Live, *, tmp_path: Path) -> None:
    file, other = tmp_path / "users", tmp_path / "others"
    write_users(file, "alice", "bob", "carol")
    write_users(other, "alice")
    sasl = ListenerSasl(mechanisms=("PLAIN",), users=str(file))
    await made.apply(made.added("b", protocol="kafka", sasl=sasl))
    clients = {name: await logged_in(made, name) for name in ("alice", "bob", "carol")}
    steps: tuple[tuple[ListenerSasl, tuple[str, ...], set[str]], ...] = (
        (dataclasses.replace(sasl, mechanisms=("PLAIN", "SCRAM-SHA-256")), ("alice", "carol"), {"bob"}),
        (dataclasses.replace(sasl, users=str(other)), ("alice", "bob", "carol"), {"carol"}),
    )
    for changed, users, gone in steps:
        b = dataclasses.replace(made.config.listeners[1], sasl=changed)
        write_users(file, *users)
        await made.apply(dataclasses.replace(made.config, listeners=(made.config.listeners[0], b)))
        for name in gone:
            client = clients.pop(name)
            assert client is not None
            assert await client.reader.read(1) == b"", name
            assert await logged_in(made, name) is None
    assert [name for name, client in clients.items() if client is not None and not client.reader.at_eof()] == ["alice"]


@run_by(run)
async def test_a_user_that_is_deleted_while_a_configuration_is_staged_stays_deleted(
    made: Live, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    write_users(file, "alice", "bob")
    await made.apply(made.added("b", protocol="kafka", sasl=ListenerSasl(mechanisms=("PLAIN",), users=str(file))))
    bob = await logged_in(made, "bob")
    deleting: list[asyncio.Task[Any]] = []

    async def closed() -> None:
        deleting.append(asyncio.create_task(made.steering.users.delete("b", "bob")))
        await until(lambda: b"bob" not in file.read_bytes())

    monkeypatch.setattr(made.steering.configuration, "_closed", closed)
    b = made.config.listeners[1]
    sasl = ListenerSasl(mechanisms=("PLAIN", "SCRAM-SHA-256"), users=str(file))
    await made.apply(dataclasses.replace(made.config, listeners=(made.config.listeners[0], dataclasses.replace(b, sasl=sasl))))
    await deleting[0]
    assert (bob is not None and await bob.reader.read(1), await logged_in(made, "bob")) == (b"", None)
    assert await logged_in(made, "alice") is not None


@run_by(run)
async def test_certificates_that_a_changed_section_revokes_end_and_others_go_on(made: Live, *, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, stolen, kept = (authority.leaf(name) for name in ("server", "stolen", "kept"))
    lists = [authority.revocations(), authority.revocations(stolen[0])]
    tls = ListenerTls(certificate=server[0], key=server[1], client_auth="required", client_ca=str(authority.path), crl=(lists[0],))
    await made.apply(made.added("b", tls=tls))

    async def opened(identity: tuple[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=str(authority.path))
        context.check_hostname = False
        context.load_cert_chain(*identity)
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port("b"), ssl=context)
        writer.write(b"\0\0\0\1x")
        assert await reader.readexactly(5) == b"\0\0\0\1x"
        return reader, writer

    (ended, _), (reader, writer) = await opened(stolen), await opened(kept)
    a, b = made.config.listeners
    for closes, path in ((False, lists[1]), (True, lists[0]), (True, lists[1])):
        changed = dataclasses.replace(b, close_revoked=closes, tls=dataclasses.replace(tls, crl=(path,), min_version="1.3" if closes else "1.2"))
        await made.apply(dataclasses.replace(made.config, listeners=(a, changed)))
        writer.write(b"\0\0\0\1y")
        assert await reader.readexactly(5) == b"\0\0\0\1y"
    assert await ended.read(1) == b""
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await opened(stolen)
    for each in (_, writer):
        each.close()


@run_by(run)
async def test_a_cluster_comes_with_ports_for_its_brokers_and_goes(made: Live) -> None:
    first = free_ports(3)[0]
    ports = f"{first}-{first + 2}"
    async with FakeBroker() as broker:
        broker.brokers = [broker.named(0), broker.named(1)]
        cluster = UpstreamConfig(name="k", kafka=KafkaCluster(bootstrap=(f"127.0.0.1:{broker.port}",)))
        made.steering.brokers.start()
        listener = ListenerConfig(
            name="b", address="127.0.0.1:0", upstream="k", protocol="kafka", brokers=BrokersConfig(ports=ports), max_receive_size=MIB
        )
        config = dataclasses.replace(made.config, listeners=(*made.config.listeners, listener), upstreams=(*made.config.upstreams, cluster))
        await made.apply(config)
        await until(lambda: len(made.steering.brokers.clusters["k"].brokers) == 2)
        await until(lambda: [reaches(first), reaches(first + 1), reaches(first + 2)] == [True, True, False])
        assert [(item.node, item.state, item.reason) for item in await made.steering.brokers.statuses()] == [(0, "up", ""), (1, "up", "")]
        moved = dataclasses.replace(listener, brokers=BrokersConfig(ports=f"{first + 1}-{first + 2}"))
        await made.apply(dataclasses.replace(config, listeners=(config.listeners[0], moved)))
        await until(lambda: [reaches(first), reaches(first + 1), reaches(first + 2)] == [False, True, True])
        await until(lambda: [row[2] for row in made.desired.brokers["k"]["listeners"]["b"]["brokers"]] == [first + 1, first + 2])
        await made.apply(dataclasses.replace(config, listeners=config.listeners[:1], upstreams=config.upstreams[:1]))
        await until(lambda: not any(reaches(first + number) for number in range(3)))
        assert (made.desired.brokers, made.steering.brokers.clusters) == ({}, {})


def _threads() -> set[str]:
    """Without the resolver's, which stays."""
    return {thread.name for thread in threading.enumerate()} - {"framegate-resolver"}


@run_by(run_fake, 2, "refuse@1")
async def test_a_processor_that_refuses_takes_the_change_back_everywhere(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    port, scraped = free_port(), free_port()
    export = Export(made.desired.config, made.log, made.task_monitor)
    export.begin(made.steering.state, {}, made.steering.events)
    monkeypatch.setattr(made.steering.configuration, "_export", export)
    otlp = OtlpConfig(endpoint="http://127.0.0.1:1", signals=("metrics", "traces", "logs"))
    telemetry = TelemetryConfig(otlp=otlp, prometheus=PrometheusConfig(address=f"127.0.0.1:{scraped}"))
    more = ListenerConfig(name="b", address=f"127.0.0.1:{port}", upstream="u", max_receive_size=MIB)
    config = dataclasses.replace(made.desired.config, listeners=(*made.desired.config.listeners, more), telemetry=telemetry)
    before = _threads()
    await refused(made, config, AbortedError, "CHANGE_REFUSED")
    assert not reaches(port)
    assert not reaches(scraped)
    await until(lambda: _threads() <= before)
    assert (export.calls, made.desired.rows_at_open) == (None, False)
    assert [set(each["max_receive_size"]) for each in await facts(made)] == [{"a"}] * 2


@pytest.mark.parametrize("mode", ["dying@1", "quitting@1"])
def test_a_processor_that_dies_meanwhile_has_it_when_it_starts_again(mode: str) -> None:
    async def scenario(made: Fleet) -> None:
        more = ListenerConfig(name="b", address="127.0.0.1:0", upstream="u", max_receive_size=MIB)
        config = dataclasses.replace(made.desired.config, listeners=(*made.desired.config.listeners, more))
        await made.steering.configuration.apply(Loaded(config, [], {}, {}))
        os.environ["FAKE_PROCESSOR"] = ""
        await until(lambda: made.ends and len(made.supervisor.running) == 2)
        assert [set(each["max_receive_size"]) for each in await facts(made)] == [{"a", "b"}] * 2

    run_fake(scenario, 2, mode)


@run_by(run)
async def test_a_processor_that_stands_still_changes_nothing_and_the_next_change_is_made(made: Live, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_phases, "PATIENCE_S", 0.3)
    pid = made.supervisor.running[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await refused(made, made.added("b"), AbortedError, "PROCESSOR_SILENT")
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.setattr(two_phases, "PATIENCE_S", 30)
    await made.apply(made.added("b"))
    assert await made.answers("b")


@run_by(run)
async def test_a_level_of_the_log_that_changes_meanwhile_is_what_the_configuration_replaces(made: Live) -> None:
    before, after, pid = made.config, made.added("b"), made.supervisor.running[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        applying = asyncio.create_task(made.apply(after))
        await until(made.supervisor._phases._lock.locked)
        await made.steering.log.change({"level": "debug"})
    finally:
        os.kill(pid, signal.SIGCONT)
    applied = await applying
    assert (before.log.level, applied.before.log.level, made.config.log.level) == ("info", "debug", "info")
    assert [item.path for item in applied.differences if item.path.startswith("log")] == ["log.level"]
    assert await made.answers("b")


@run_by(run)
async def test_a_processor_killed_while_a_configuration_is_applied_has_it_afterwards(made: Live) -> None:
    for number in range(4):
        killed = made.supervisor.running[number % 2].pid
        applying = asyncio.create_task(made.apply(made.added(f"b{number}") if number % 2 == 0 else dataclasses.replace(
            made.config, listeners=made.config.listeners[:1], upstreams=made.config.upstreams[:1]
        )))  # fmt: skip
        await asyncio.sleep(0.002 * number)
        os.kill(killed, signal.SIGKILL)
        await applying
        await until(lambda killed=killed: killed not in [each.pid for each in made.supervisor.running] and len(made.supervisor.running) == 2)
        for item in made.config.listeners:
            assert await made.answers(item.name)


@run_by(run)
async def test_a_cancelled_application_is_made_or_taken_back(made: Live) -> None:
    first, second = made.config, made.added("b")
    seen: set[bool] = set()
    for number in range(100):  # each is cancelled later; when the first one is made depends on the machine
        if number >= 12 and len(seen) == 2:
            break
        wanted = second if made.config == first else first
        task = asyncio.create_task(made.apply(wanted))
        await asyncio.sleep(0.001 * number)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: not made.steering.transactions._running)
        seen.add(made.config == wanted)
        assert set(made.acceptor.listeners) == {item.name for item in made.config.listeners}
        assert made.config in (first, second)
        for item in made.config.listeners:
            assert await made.answers(item.name, 2)
    assert seen == {True, False}


@run_by(run)
async def test_applying_again_and_again_grows_nothing(made: Live) -> None:
    async def once(number: int) -> None:
        first = dataclasses.replace(made.config, listeners=made.config.listeners[:1], upstreams=made.config.upstreams[:1])
        await made.apply(dataclasses.replace(first, rotation=RotationConfig(poll_ms=1_000 + number)))
        await made.apply(made.added(f"b{number}", "c"))
        assert await made.answers("c", 1)
        made.supervisor.connections.count_handed()
        await until(lambda: made.acceptor.open == 0)
        await made.steering.configuration._settle()

    def size() -> tuple[int, ...]:
        pids = [os.getpid(), *(each.pid for each in made.supervisor.running)]
        return len(made.desired.layout.places), len(made.meters._values), *(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)

    for number in range(6):
        await once(number)
    before = size()
    for number in range(6, 30):
        await once(number)
    grown = [now - then for now, then in zip(size(), before, strict=True)]
    assert max(grown) <= 2, "of each at most what one application needs for a moment"


@run_by(run, 1)
async def test_the_pool_and_the_number_of_processors_are_applied_too(made: Live) -> None:
    larger = dataclasses.replace(made.config, processors=3, memory_pool=MemoryPoolConfig(size=30 * MIB, shares={"a": 20}))
    await made.apply(larger)
    assert [len(made.supervisor.running), *made.desired.shares.values()] == [3, 10 * MIB, 10 * MIB, 10 * MIB]
    assert made.config == larger
    assert await made.answers("a", 6)
    held = await made.connect("a")
    assert await held.echo(b"\0\0\0\1x") == b"\0\0\0\1x"
    smaller = dataclasses.replace(made.config, processors=1, memory_pool=MemoryPoolConfig(size=12 * MIB))
    applied = await made.apply(smaller)
    assert (applied.pending, made.config) == (("2 processors of 3 drain before they are removed",), smaller)
    assert (made.steering.pool.status().processors, sum(made.desired.shares.values())) == (1, 12 * MIB)
    await until(lambda: made.desired.shares == {0: 12 * MIB})
    assert (len(made.supervisor.running), made.steering.pool.pending) == (1, ())


@run_by(run)
async def test_processors_that_drain_hold_up_no_change_and_are_removed_even_if_that_fails_at_first(
    made: Live, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framegate.control.steering.pool.BALANCE_INTERVAL_S", 0.02)
    remove, tries = made.supervisor.remove_slots, []

    async def failing(*given: Any) -> None:
        tries.append(given)
        if len(tries) == 1:
            raise OSError("no drain")
        await remove(*given)

    monkeypatch.setattr(made.supervisor, "remove_slots", failing)
    pool = made.steering.pool
    pool._balancer.cancel()
    pool._balancer = made.task_monitor.repeat("shares", pool._balance, 0.02, 9)
    await made.apply(dataclasses.replace(made.config, drain=DrainConfig(timeout_ms=60_000, quiet_ms=50)))
    clients = [await made.connect("a") for _ in range(4)]
    for client in clients:
        client.writer.write(b"\0\0\0\x08half")  # the drain waits for the rest of the frame
    await until(lambda: sum(len(each.open) for each in made.supervisor.alive) == 4)
    async with asyncio.timeout(10):
        assert (await made.apply(dataclasses.replace(made.config, processors=1))).pending
        await made.apply(made.added("b"))
        assert await made.answers("b")
        await made.apply(dataclasses.replace(made.config, processors=3))
        assert await made.answers("b")
        assert (pool.status().processors, [slot.number for slot in made.supervisor._ordered()]) == (3, [0, 1, 2, 3])
        assert made.steering.configuration_file.pending == pool.pending == ("1 processor of 4 drain before they are removed",)
        for client in clients:
            client.writer.write(b"rest")
        await until(lambda: made.desired.shares == {0: 4 * MIB, 2: 4 * MIB, 3: 4 * MIB})
    assert (len(tries), pool.pending) == (2, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 12, 5), (3, 30, 5)),  # processors, MiB of the pool, MiB of the largest frame
        ((3, 30, 8), (1, 12, 8)),
        ((3, 30, 8), (1, 8, 8)),
        ((3, 12, 2), (1, 12, 9)),
        ((1, 12, 9), (3, 12, 2)),
        ((2, 30, 10), (3, 12, 2)),
        ((3, 12, 2), (2, 30, 12)),
    ],
)
def test_processors_pool_and_frames_may_move_in_opposite_directions(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    async def scenario(made: Live) -> None:
        for processors, pool, largest in (before, after):
            listener = dataclasses.replace(made.config.listeners[0], max_receive_size=largest * MIB)
            config = dataclasses.replace(made.config, processors=processors, memory_pool=MemoryPoolConfig(size=pool * MIB), listeners=(listener,))
            await made.apply(config)
            frame = framed(bytes(largest * MIB))
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port("a"))
            writer.write(frame)
            assert await reader.readexactly(len(frame)) == frame
            writer.close()
            await until(lambda size=pool * MIB: sum(made.desired.shares.values()) == size)
            assert (made.config, len(made.supervisor.slots)) == (config, processors)

    run(scenario, 1)


@run_by(run, 1)
async def test_processors_that_cannot_start_or_a_cancelled_start_change_nothing(made: Live) -> None:
    larger = dataclasses.replace(made.added("b"), processors=3, memory_pool=MemoryPoolConfig(size=30 * MIB))
    kept = made.supervisor._spawn_options
    made.supervisor._spawn_options = kept._replace(command=("/nonexistent/processor",))
    error = await refused(made, larger, UnavailableError, "PROCESSOR_START_FAILED")
    assert error.changed is None
    made.supervisor._spawn_options = kept
    for delay_s in (0.0, 0.005, 0.01, 0.02):  # a processor takes longer to start
        applying = asyncio.create_task(made.apply(larger))
        await asyncio.sleep(delay_s)
        assert applying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await applying
        await until(lambda: not made.steering.transactions._running)
        assert (made.config.processors, list(made.supervisor.slots), made.desired.shares) == (1, [0], {0: 12 * MIB})
    assert await made.answers("a")
    await made.apply(larger)
    assert await made.answers("b", 6)


@run_by(run)
async def test_what_fails_behind_the_decision_is_reported_and_everything_else_is_in_force(made: Live, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of this process in turn; and a listener whose socket a drain has closed."""
    steps = [
        (made.acceptor, "set_limits"),
        (made.meters, "prepare"),
        (made.resolver, "follow"),
        (made.certificates, "follow"),
        (made.rotation, "configure"),
        (made.identities, "follow"),
        (made.steering.configuration._checks, "follow"),
        (made.steering.brokers, "follow"),
        (made.steering.taps, "replaced"),
        (made.steering.taps, "made"),
        (made.acceptor, "accept_new"),
    ]
    for number, (part, method) in enumerate(steps):
        with monkeypatch.context() as patched:
            patched.setattr(part, method, lambda *given: 1 / 0)
            config = made.added(f"b{number}")
            assert (await made.apply(config)).after == made.config == config, method
        assert made.log.events("task_failed")[-1]["error"] == "ZeroDivisionError('division by zero')", method
        made.acceptor.accept_new()
        assert await made.answers(f"b{number}", 2), method
        if method == "follow":
            await made.apply(dataclasses.replace(made.config, rotation=RotationConfig(poll_ms=2_000 + number)))
    assert len(made.log.events("task_failed")) >= len(steps)
    made.acceptor.listeners["a"].sock.close()
    a = dataclasses.replace(made.config.listeners[0], backlog=7)
    await made.apply(dataclasses.replace(made.config, listeners=(a, *made.config.listeners[1:])))
    assert made.config.listeners[0].backlog == 7


@run_by(run)
async def test_no_memory_for_counters_changes_nothing(made: Live, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is mapped before the decision."""
    with monkeypatch.context() as patched:
        patched.setattr("framegate.control.fleet.slot_cells.mmap.mmap", lambda *given: (_ for _ in ()).throw(OSError(12, "Cannot allocate memory")))
        await refused(made, made.added("b"), UnavailableError, "NO_MEMORY")
    await made.apply(made.added("b"))
    assert await made.answers("b")


@run_by(run)
async def test_an_address_that_overlaps_with_one_that_goes_is_taken_over_without_a_client_refused(made: Live) -> None:
    port = free_port()
    addresses = [f"0.0.0.0:{port}", f"127.0.0.1:{port}", f"[::]:{port}", f"127.0.0.1:{port}", f"0.0.0.0:{port}"]
    served = refusals = 0

    async def knock() -> None:
        nonlocal served, refusals
        while not stop.is_set():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\0\0\0\1x")
                served += await reader.readexactly(5) == b"\0\0\0\1x"
                writer.close()
            except (ConnectionRefusedError, ConnectionResetError):
                refusals += 1

    await made.apply(made.added("b", address=addresses[0]))
    a, b = made.config.listeners
    stop = asyncio.Event()
    knocking = asyncio.create_task(knock())
    for address in addresses[1:]:
        await made.apply(dataclasses.replace(made.config, listeners=(a, dataclasses.replace(b, address=address))))
        await until(lambda: not made.acceptor.closing)
        before = served
        await until(lambda before=before: served > before)  # whatever else the machine has to do
    stop.set()
    await knocking
    assert (refusals, made.acceptor.listeners["b"].address) == (0, addresses[-1])
    taken = dataclasses.replace(b, name="c", address=f"127.0.0.1:{port}")
    await refused(
        made, dataclasses.replace(made.config, listeners=(a, made.config.listeners[1], taken)), FailedPreconditionError, "LISTENER_ADDRESS_UNUSABLE"
    )


@run_by(run, 1)
async def test_clients_in_the_backlog_of_a_listener_that_goes_are_served(made: Live) -> None:
    await made.apply(made.added("b"))
    listening = made.acceptor.listeners["b"]
    made.acceptor._epoll.modify(listening.sock.fileno(), 0)
    client = await made.connect("b")
    await made.apply(dataclasses.replace(made.config, listeners=made.config.listeners[:1], upstreams=made.config.upstreams[:1]))
    assert await client.echo(b"\0\0\0\1x") in (b"\0\0\0\1x", b"")
    await until(lambda: any(row["event"] == "closed" and row["listener"] == "b" for row in made.events))


@run_by(run, 1)
async def test_a_drain_that_begins_meanwhile_leaves_no_address_open(made: Live, *, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    config = made.added("b", address=f"127.0.0.1:{port}")
    put = made.acceptor.put

    def put_and_stop(listeners: Any) -> None:
        put(listeners)
        made.acceptor.stop()

    with monkeypatch.context() as patched:
        patched.setattr(made.acceptor, "put", put_and_stop)
        await made.apply(config)
    assert (made.config, reaches(port)) == (config, False)
    await refused(made, dataclasses.replace(config, listeners=config.listeners[:1]), FailedPreconditionError, "DRAINING")
