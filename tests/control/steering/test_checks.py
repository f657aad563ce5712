"""Active checks: which endpoints fail, when, and what processors are given of it; in virtual time, and against real servers."""

import asyncio
import dataclasses
import itertools
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from framegate.control.accept.broker_connection import Tls, Wire
from framegate.control.errors import AbortedError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.meters import Meters
from framegate.control.steering.checks import AT_ONCE, Checks, probe_of
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import CheckConfig, UpstreamConfig
from framegate.proxy.network.proxy_protocol import header_bytes
from framegate.proxy.server.messages import Change
from tests.fakes.brokers import FakeBroker
from tests.fakes.fleet import MemoryLog, fleet_config
from tests.fakes.tls import TlsWorld
from tests.fakes.virtual_time import VirtualLoop, in_virtual_time

Answer = Callable[[Wire], Awaitable[None]]


class World:
    """Checks of an upstream with some endpoints, whose answers are scripted: ``bad`` ones fail at once, ``silent`` ones hang."""

    def __init__(self, ports: range, **check: Any) -> None:
        self.check = CheckConfig(**{"every_ms": 5_000, "timeout_ms": 2_000, **check})
        config = fleet_config(1)
        upstream = dataclasses.replace(config.upstreams[0], check=self.check)
        self.desired = DesiredState(dataclasses.replace(config, upstreams=(upstream,)), {"u": [wire(port) for port in ports]}, {0: 1})
        self.log = MemoryLog()
        self.bad: set[int] = set()
        self.silent: set[int] = set()
        self.asked: list[tuple[float, int]] = []
        self.running = self.most = 0
        self.changes: list[dict[str, str]] = []
        self.refuses = 0
        self.takes_s = 0.01
        self.checks: Checks | None = None

    async def change(self, build: Callable[[int], Change], commit: Callable[[DesiredState], None], check: Callable[[], None]) -> None:
        check()
        if self.refuses:
            self.refuses -= 1
            raise AbortedError("no", reason="REFUSED")
        commit(self.desired)
        self.changes.append(build(0)["failing"].get("u", {}))

    def probe(self, *args: object) -> Answer:
        del args

        async def ask(address: Wire) -> None:
            port = address[3]
            self.asked.append((asyncio.get_running_loop().time(), port))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                if port in self.silent:
                    await asyncio.sleep(1e6)
                await asyncio.sleep(self.takes_s)
                if port in self.bad:
                    raise OSError(111, "Connect call failed")
            finally:
                self.running -= 1

        return ask

    def start(self) -> Checks:
        supervisor = cast(Supervisor, self)
        return Checks(supervisor, cast(Any, self.log), TaskMonitor(cast(Any, self.log), Meters()), self.probe)

    @property
    def failing(self) -> list[int]:
        return sorted(int(text.rpartition(":")[2]) for text in self.desired.failing.get("u", {}))

    def follow(self, check: CheckConfig | None, *, name: str = "u") -> None:
        """Have another configuration of the upstream in force."""
        assert self.checks is not None
        upstream = dataclasses.replace(self.desired.config.upstreams[0], check=check, name=name)
        self.desired.config = dataclasses.replace(self.desired.config, upstreams=(upstream,))
        self.checks.follow(self.desired.config)


def wire(port: int) -> list[Any]:
    return ["127.0.0.1", 2, "127.0.0.1", port]


def scenario(ports: range, script: Callable[[World, VirtualLoop], Awaitable[None]], **check: Any) -> World:
    world = World(ports, **check)

    async def run(loop: VirtualLoop) -> None:
        checks = world.checks = world.start()
        await script(world, loop)
        checks.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    in_virtual_time(run)
    assert world.running == 0, "a check goes on"
    assert world.log.events("task_failed") == []
    return world


def test_an_endpoint_fails_after_so_many_failures_in_a_row_and_passes_after_so_many_successes() -> None:
    async def script(world: World, loop: VirtualLoop) -> None:
        found = []
        for bad in (True, True, False, True, True, True, False, True, False, False):
            world.bad = {1} if bad else set()
            await asyncio.sleep(5)
            found.append(world.failing)
        assert found == [[]] * 5 + [[1]] * 4 + [[]], found

    world = scenario(range(1, 3), script, rise=2, fall=3)
    rows = [(row["event"], row["endpoint"], row.get("error")) for row in world.log.rows if row["event"].startswith("check")]
    assert rows == [("check_failed", "127.0.0.1:1", "Connection refused"), ("check_passed", "127.0.0.1:1", None)]
    assert world.changes == [{"127.0.0.1:1": "Connection refused"}, {}]


def test_endpoints_that_hang_delay_nobody_and_not_too_many_checks_run_at_once() -> None:
    async def script(world: World, loop: VirtualLoop) -> None:
        world.silent = set(range(200))
        await asyncio.sleep(40)
        assert world.failing == list(range(200))
        times = [at for at, port in world.asked if port == 299]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) >= 5
        assert max(gaps) < 5.2

    world = scenario(range(300), script)
    assert world.most <= AT_ONCE
    assert set(world.changes[-1].values()) == {"no answer within 2 s"}


def test_a_stopped_control_process_fails_nobody() -> None:
    async def script(world: World, loop: VirtualLoop) -> None:
        world.takes_s = 2.9
        for _ in range(5):
            began = len(world.asked)
            while len(world.asked) == began:
                await asyncio.sleep(0.1)
            loop.skip(60)
        await asyncio.sleep(30)
        assert len(world.asked) > 10

    world = scenario(range(1, 3), script, fall=1, timeout_ms=3_000)
    assert world.log.events("check_failed") == []


def test_what_has_changed_together_is_one_change_a_refused_one_is_tried_again_and_who_is_gone_is_forgotten() -> None:
    async def script(world: World, loop: VirtualLoop) -> None:
        world.bad, world.refuses = set(range(50)), 2
        await asyncio.sleep(12)
        assert world.failing == list(range(50))
        assert len(world.log.events("endpoints_refused")) == 2
        world.desired.endpoints = {"u": [wire(port) for port in range(45, 60)]}
        await asyncio.sleep(6)
        assert world.failing == list(range(45, 50))
        world.desired.brokers = cast(Any, {"u": {"brokers": [{"id": 1, "rack": "", "addresses": [wire(7)]}], "listeners": {}}})
        await asyncio.sleep(12)
        assert world.failing == [7, *range(45, 50)], "brokers of a cluster, too"

    scenario(range(50), script, fall=1)


def probe(upstream: UpstreamConfig, kind: str, tls: Callable[[str], Tls | None] = lambda host: None) -> Answer:
    return probe_of(upstream, CheckConfig(kind=kind), tls)  # type: ignore[arg-type]


def test_each_kind_meets_what_it_is_for_and_sends_its_header_first(tmp_path: Path, tls_world: TlsWorld) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls_world.server)
    client = tls_world.client_settings().context

    def tls(host: str) -> Tls:
        return Tls(client, "localhost")

    plain = UpstreamConfig(name="u")

    async def meet() -> list[str]:
        heard: list[bytes] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1 << 16))
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        unix = await asyncio.start_unix_server(silent, str(tmp_path / "s"))
        found = []
        async with FakeBroker() as broker, FakeBroker([], context) as secure:
            cases = {
                "connect": (probe(plain, "connect"), wire(port)),
                "unix": (probe(plain, "connect"), ["", 1, str(tmp_path / "s")]),
                "refused": (probe(plain, "connect"), wire(1)),
                "tls": (probe(plain, "tls", tls), secure.wire),
                "tls of a plain one": (probe(plain, "tls", tls), broker.wire),
                "kafka": (probe(plain, "kafka"), broker.wire),
                "kafka over tls": (probe(plain, "kafka", tls), secure.wire),
                "kafka of another": (probe(plain, "kafka"), wire(port)),
                "header": (probe(dataclasses.replace(plain, send_proxy_protocol="v2"), "connect"), wire(port)),
            }
            for name, (ask, address) in cases.items():
                try:
                    async with asyncio.timeout(0.1 if name == "tls of a plain one" else 5):
                        await ask(address)
                except (OSError, EOFError):
                    found.append(name)
            async with asyncio.timeout(5):
                while header_bytes("v2", "", "") not in heard:
                    await asyncio.sleep(0.01)
        server.close()
        unix.close()
        assert header_bytes("v2", "", "") in heard
        return found

    assert asyncio.run(meet()) == ["refused", "tls of a plain one", "kafka of another"]


def test_an_error_of_ours_is_told_and_fails_no_endpoint() -> None:
    world = World(range(1), fall=1)

    async def run(loop: VirtualLoop) -> None:
        async def broken(address: Wire) -> None:
            raise KeyError(address[3])

        world.probe = lambda *args: broken  # type: ignore[method-assign]
        checks = world.start()
        await asyncio.sleep(8)
        checks.close()

    in_virtual_time(run)
    assert [(row["task"], row["error"]) for row in world.log.events("task_failed")] == [("checks", "KeyError(0)")]
    assert world.desired.failing == {}


def test_checks_follow_the_configuration_and_keep_what_they_know() -> None:
    async def script(world: World, loop: VirtualLoop) -> None:
        world.bad = {1}
        await asyncio.sleep(20)
        assert world.failing == [1]
        world.follow(dataclasses.replace(world.check, every_ms=1_000, rise=4))
        await asyncio.sleep(0.5)
        assert world.failing == [1], "another interval forgets nothing"
        asked = len(world.asked)
        await asyncio.sleep(5)
        assert len(world.asked) - asked >= 9, "two endpoints in each of five seconds"
        world.follow(None)
        await asyncio.sleep(0.5)
        asked = len(world.asked)
        await asyncio.sleep(20)
        assert (world.failing, len(world.asked)) == ([], asked), "nobody is checked, and nobody fails"
        world.follow(world.check)
        await asyncio.sleep(30)
        assert world.failing == [1]
        world.follow(world.check, name="other")
        await asyncio.sleep(30)
        assert world.changes[-1] == {}

    scenario(range(1, 3), script)
