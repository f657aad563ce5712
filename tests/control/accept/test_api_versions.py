"""What an upstream understands: asked of all its endpoints, kept while they do not answer, and asked at once when somebody wants to know."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.control.accept.api_versions import ApiVersions, common, common_ranges
from framegate.control.accept.broker_connection import Tls
from framegate.control.identity.auth_responder import UnknownApisError
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.certificates import key_pin
from framegate.proxy.auth.messages import ApiRange, ApiVersionsAnswer, RequestHeader, answer_writer
from framegate.proxy.auth.wire import Tags
from tests.fakes.cases import each_of
from tests.fakes.fleet import MemoryLog
from tests.fakes.scenario import run_by, within_10_s
from tests.fakes.tls import TlsWorld

ONE, OTHER = (ApiRange(0, 3, 11), ApiRange(18, 0, 4)), (ApiRange(0, 5, 12), ApiRange(18, 0, 3), ApiRange(71, 0, 0))
Body = Callable[[bytes], bytes | None]


def test_what_all_understand_is_told() -> None:
    assert common_ranges([ONE]) == ONE
    assert common_ranges([ONE, OTHER]) == (ApiRange(0, 5, 11), ApiRange(18, 0, 3))
    assert common_ranges([ONE, (ApiRange(0, 12, 12),)]) == ()


def broker(*ranges: ApiRange, error: int = 0, tags: dict[int, Tags] | None = None) -> Body:
    """Answers the versions that it has tagged fields for; others, which it does not know, as version 0."""

    def body(asked: bytes) -> bytes:
        version = asked[3]
        header = RequestHeader(18, version, int.from_bytes(asked[4:8], "big"))
        writer = answer_writer(header)
        if version and version not in (tags or {}):
            ApiVersionsAnswer(35, (ApiRange(18, 0, 0),)).write(writer, 0)
        else:
            ApiVersionsAnswer(error, ranges, (tags or {}).get(version, ())).write(writer, version)
        return writer.message()

    return body


def test_of_what_several_say_besides_is_told_what_all_say_and_the_latest_of_what_is_in_force() -> None:
    supported, other, ready, later = (0, b"a"), (0, b"b"), (3, b"\1"), (9, b"x")
    old, new = ((1, (41).to_bytes(8, "big")), (2, b"old")), ((1, (42).to_bytes(8, "big")), (2, b"new"))
    for sets, wanted in (
        ([(supported, *old, ready)], (supported, *old, ready)),
        ([(supported, *old, ready), (supported, *new, ready)], (supported, *new, ready)),
        ([(supported, *new), (other, *old)], new),
        ([(supported, *old, later), (supported, *old)], (supported, *old)),
        ([(supported,), (supported, *old)], (supported, *old)),
        ([(), ()], ()),
    ):
        assert common([ApiVersionsAnswer(0, ONE, tags) for tags in sets]) == ApiVersionsAnswer(0, ONE, wanted)
    known = [ApiVersionsAnswer(0, (ApiRange(0, 3, most, ((5, b"k"), (6, bytes([most])))),)) for most in (11, 12)]
    assert common(known).ranges == (ApiRange(0, 3, 11, ((5, b"k"),)),)


@each_of("versions", [(3, 4), (3,), ()])
@run_by(within_10_s)
async def test_who_asks_in_a_version_is_told_what_the_broker_says_in_it(*, versions: tuple[int, ...]) -> None:
    said = {version: ((0, bytes([version])), (1, bytes(8))) for version in versions}
    endpoint = Endpoint(framed(broker(*ONE, tags=said)))
    async with endpoint as address, bench([address]) as made:
        await made.until(ONE)
        for version in range(6):
            same = max((item for item in versions if item <= max(version, 3)), default=0)
            assert made.apis.known(version) == ApiVersionsAnswer(0, ONE, said.get(same, ()))


@run_by(within_10_s)
async def test_a_broker_without_features_and_one_with_them_have_none_in_common() -> None:
    said: dict[int, Tags] = dict.fromkeys((3, 4), ((0, b"x"),))
    async with Endpoint(framed(broker(*ONE, tags=said))) as first, Endpoint(framed(broker(*ONE))) as second, bench([first, second]) as made:
        await made.until(ONE)
        assert made.apis.known(4).tags == ()


class Endpoint:
    """A server that answers one frame for each connection; ``body`` gives None to be silent."""

    def __init__(self, body: Body, context: ssl.SSLContext | None = None) -> None:
        self.body = body
        self.asked = 0
        self._context = context
        self._server: asyncio.Server | None = None
        self._done = asyncio.Event()

    async def __aenter__(self) -> list[Any]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return ["127.0.0.1", int(socket.AF_INET), *self._server.sockets[0].getsockname()]

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._done.set()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            self.asked += 1
            body = self.body(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
            if body is None:
                await self._done.wait()
            else:
                writer.write(body)
                await writer.drain()
        writer.close()


def framed(body: Body) -> Body:
    def answer(asked: bytes) -> bytes | None:
        found = body(asked)
        return None if found is None else len(found).to_bytes(4, "big") + found

    return answer


class Bench:
    """One upstream's, and what it logged."""

    def __init__(self, addresses: list[Any], tls: Callable[[str], Tls | None] = lambda host: None, timeout_s: float = 5.0) -> None:
        self.log, self.meters = MemoryLog(), Meters()
        task_monitor = TaskMonitor(self.log, self.meters)
        self.apis = ApiVersions("u", lambda: addresses, tls, self.log, task_monitor, timeout_s=timeout_s, interval_s=0.01, pause_s=0.01)

    def known(self) -> tuple[ApiRange, ...] | str:
        try:
            return self.apis.known(3).ranges
        except UnknownApisError as error:
            return str(error)

    async def until(self, wanted: object) -> None:
        while self.known() != wanted:
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def bench(addresses: list[Any], **options: Any) -> AsyncIterator[Bench]:
    made = Bench(addresses, **options)
    try:
        yield made
    finally:
        await made.apis.stop()


def unknown(reason: str) -> str:
    return f"what the upstream u understands is not known: {reason}"


@run_by(within_10_s)
async def test_every_endpoint_is_asked_and_again_later() -> None:
    one, other = Endpoint(framed(broker(*ONE))), Endpoint(framed(broker(*OTHER)))
    async with one as first, other as second, bench([first, second]) as made:
        await made.until(common_ranges([ONE, OTHER]))
        one.body = other.body = framed(broker(*OTHER))
        await made.until(OTHER)
        assert made.log.rows == []


@run_by(within_10_s)
async def test_an_endpoint_that_is_silent_is_left_out_after_its_timeout() -> None:
    async with Endpoint(framed(broker(*ONE))) as first, Endpoint(lambda body: None) as second, bench([second, first], timeout_s=0.1) as made:
        await made.until(ONE)


@run_by(within_10_s)
async def test_what_is_known_stays_while_nobody_answers() -> None:
    addresses: list[Any] = []
    async with bench(addresses) as made:
        await made.until(unknown("it has no address"))
        one = Endpoint(framed(broker(*ONE)))
        async with one as first:
            addresses.append(first)
            await made.until(ONE)
        while len(made.log.rows) < 2:
            await asyncio.sleep(0.002)
        assert made.known() == ONE
        assert [(row["event"], row["upstream"]) for row in made.log.rows] == [("api_versions_failed", "u")] * 2
        assert "Connect" in made.log.rows[1]["error"] or "refused" in made.log.rows[1]["error"]


@each_of(
    ("body", "reason"),
    [
        (framed(broker(error=35)), "ApiVersions is answered with error 35"),
        (framed(broker()), "ApiVersions is answered with error 0"),
        (framed(lambda body: b"\0\0\0\5\0\0"), "correlation id 5 where 1 was asked"),
        (lambda body: b"HTTP/1.1 400 Bad Request\r\n", "an answer of 1213486160 bytes: it does not speak Kafka's protocol"),
        (lambda body: b"\0\0", "2 bytes read on a total of 4 expected bytes"),
    ],
)
@run_by(within_10_s)
async def test_what_is_no_answer_is_named(*, body: Body, reason: str) -> None:
    async with Endpoint(body) as address, bench([address]) as made:
        await made.until(unknown(reason))


@run_by(within_10_s)
async def test_it_is_asked_over_tls_by_its_name(*, tls_world: TlsWorld) -> None:
    server = tls_world.server_settings().context
    client = ssl.create_default_context(cafile=tls_world.authority)
    async with Endpoint(framed(broker(*ONE)), server) as address:
        async with bench([address], tls=lambda host: Tls(client, "localhost")) as made:
            await made.until(ONE)
        async with bench([address], tls=lambda host: Tls(client, "other.example")) as made:
            while "CERTIFICATE_VERIFY_FAILED" not in str(made.known()):
                await asyncio.sleep(0.002)


@run_by(within_10_s)
async def test_it_is_asked_at_a_unix_socket(*, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("u") / "s")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(framed(broker(*ONE))(body) or b"")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server, bench([["", int(socket.AF_UNIX), path]]) as made:
        await made.until(ONE)


@run_by(within_10_s)
async def test_another_thread_may_ask_and_an_error_of_ours_costs_one_look() -> None:
    faulty: list[Any] = [["127.0.0.1"]]
    async with bench(faulty) as made:
        while made.meters.value("task.failures", "api_versions") == 0:
            await asyncio.sleep(0.002)
        async with Endpoint(framed(broker(*ONE))) as address:
            faulty[0] = address
            await made.until(ONE)
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(made.known()))
            thread.start()
            await asyncio.to_thread(thread.join)
            assert found == [ONE]


@run_by(within_10_s)
async def test_a_key_that_is_none_of_pins_is_told_and_asked_nothing(*, tls_world: TlsWorld) -> None:
    server, client = tls_world.server_settings().context, tls_world.client_settings().context
    right, wrong = (key_pin(ssl.PEM_cert_to_DER_cert(Path(paths[0]).read_text())) for paths in (tls_world.server, tls_world.client))
    endpoint = Endpoint(framed(broker(*ONE)), server)
    async with endpoint as address:
        async with bench([address], tls=lambda host: Tls(client, "localhost", (wrong,))) as made:
            await made.until(f"what the upstream u understands is not known: the certificate has the key {right}, which is none of pins")
            assert [row["event"] for row in made.log.rows] == ["api_versions_failed"]
        async with bench([address], tls=lambda host: Tls(client, "localhost", (wrong, right))) as made:
            await made.until(ONE)
