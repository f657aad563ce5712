"""Which requests an upstream understands: what framegate tells clients that ask before they have said who they are.

Kafka's brokers answer ApiVersions to everybody. So control asks them itself, over a connection of its own, now and then; a processor could only know
what it has once spoken to. Several endpoints are asked, and what all that answer understand is told: a client does not know which one it will get.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from control.guard import Guard
from control.identity.answers import UnknownApisError
from control.logs import RowLog
from proxy.auth.messages import API_VERSIONS, NONE, ApiRange, ApiVersionsAnswer, ApiVersionsRequest, RequestHeader, answer_reader, request_writer
from proxy.errors import AuthenticationError, ProxyError

__all__ = ["MAX_ANSWER", "ApiVersions", "Tls", "common_ranges", "question", "ranges_in"]

INTERVAL_S: Final = 60.0
"""Between two looks at what is known: brokers are upgraded."""
PAUSE_S: Final = 0.5
"""After a look that found nothing; it doubles, up to ``MOST_PAUSE_S``, unless somebody wants to know."""
MOST_PAUSE_S: Final = 30.0
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer; who announces more does not speak Kafka's protocol."""
_REQUEST: Final = RequestHeader(API_VERSIONS, 0, 1, "framegate")
Wire = Sequence[Any]


class Tls(NamedTuple):
    """How an endpoint is spoken to: the context, the name that its certificate must have, and ``UpstreamTls.pins``."""

    context: ssl.SSLContext
    name: str
    pins: tuple[str, ...] = ()


def common_ranges(answers: Sequence[Sequence[ApiRange]]) -> tuple[ApiRange, ...]:
    """What all of them understand, by key."""
    first, *others = [{item.key: item for item in answer} for answer in answers]
    found = []
    for key, mine in sorted(first.items()):
        same = [mine, *(other[key] for other in others if key in other)]
        least, most = max(item.least for item in same), min(item.most for item in same)
        if len(same) == len(answers) and least <= most:
            found.append(ApiRange(key, least, most))
    return tuple(found)


def question() -> bytes:
    """The frame that asks, with its size; every broker knows this version of it, and answers before anybody has logged in."""
    request = request_writer(_REQUEST)
    ApiVersionsRequest().write(request, 0)
    body = request.message()
    return len(body).to_bytes(4, "big") + body


def ranges_in(body: bytes) -> tuple[ApiRange, ...]:
    """What the answer says, without its size. Raises OSError: it is a refusal; MalformedError: it is no answer."""
    answer = ApiVersionsAnswer.read(answer_reader(body, _REQUEST), 0)
    if answer.error != NONE or not answer.ranges:
        raise OSError(f"ApiVersions is answered with error {answer.error}")
    return answer.ranges


class ApiVersions:
    """One upstream's. On the event loop, but for ``ranges``.

    Args:
        upstream: its name.
        addresses: of its endpoints, as the link has them.
        tls: how an endpoint is spoken to, by its host; None for plaintext. In a thread; may raise ProxyError.
        timeout_s: for one endpoint's answer.
    """

    def __init__(
        self,
        upstream: str,
        addresses: Callable[[], Sequence[Wire]],
        tls: Callable[[str], Tls | None],
        log: RowLog,
        guard: Guard,
        *,
        timeout_s: float,
        interval_s: float = INTERVAL_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._upstream: Final = upstream
        self._addresses: Final = addresses
        self._tls: Final = tls
        self._log: Final = log
        self._guard: Final = guard
        self._timeout_s: Final = timeout_s
        self._interval_s: Final = interval_s
        self._pause_s: Final = pause_s
        self._ranges: tuple[ApiRange, ...] = ()
        self._error = "nobody has asked it yet"
        self._loop: Final = asyncio.get_running_loop()
        self._wanted: Final = asyncio.Event()
        self._task: Final = asyncio.create_task(self._run())

    def ranges(self) -> tuple[ApiRange, ...]:
        """What it understands. Any thread.

        Raises:
            UnknownApisError: it has not been reached yet, and why.
        """
        if not self._ranges:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wanted.set)
            raise UnknownApisError(f"what the upstream {self._upstream} understands is not known: {self._error}")
        return self._ranges

    async def stop(self) -> None:
        """Ask no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = self._pause_s
        while True:
            try:
                await self._look()
            except Exception as error:  # of ours; it costs one look
                self._error = repr(error)
                self._guard.failed("api_versions", error)
            await asyncio.sleep(self._pause_s)
            if self._ranges and not self._error:
                pause_s = self._pause_s
                await asyncio.sleep(self._interval_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            self._wanted.clear()
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    async def _look(self) -> None:
        """Ask every endpoint, at once. What was known stays when none answers."""
        asked = await asyncio.gather(*(self._ask(address) for address in self._addresses()), return_exceptions=True)
        for found in asked:
            if isinstance(found, BaseException) and not isinstance(found, OSError | ProxyError | EOFError):
                raise found
        answers = [found for found in asked if isinstance(found, tuple)]
        errors = [str(found) or type(found).__name__ for found in asked if isinstance(found, BaseException)]
        error = "" if answers else errors[0] if errors else "it has no address"
        if answers:
            self._ranges = common_ranges(answers)
        if error and error != self._error:
            self._log.write("api_versions_failed", level="warning", upstream=self._upstream, error=error)
        self._error = error

    async def _ask(self, address: Wire) -> tuple[ApiRange, ...]:
        """What one endpoint understands. Raises OSError (TimeoutError is one), EOFError or ProxyError."""
        async with asyncio.timeout(self._timeout_s):
            tls = await asyncio.to_thread(self._tls, address[0])  # to build a context takes milliseconds, and to read the system's authorities tens
            reader, writer = await _connect(address, tls)
            try:
                if tls is not None and tls.pins:
                    _check_key(writer, tls.pins)
                writer.write(question())
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > MAX_ANSWER:
                    raise OSError(f"an answer of {size} bytes: it does not speak Kafka's protocol")
                return ranges_in(await reader.readexactly(size))
            finally:
                writer.transport.abort()


async def _connect(address: Wire, tls: Tls | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    _, family, *rest = address
    context, name = (None, None) if tls is None else (tls.context, tls.name)
    if family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(rest[0], ssl=context, server_hostname=name)
    return await asyncio.open_connection(rest[0], rest[1], ssl=context, server_hostname=name)


def _check_key(writer: asyncio.StreamWriter, pins: tuple[str, ...]) -> None:
    """As processors do, who say more of it. Raises AuthenticationError."""
    from proxy.auth.certificate_pins import key_pin

    pin = key_pin(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    if pin not in pins:
        raise AuthenticationError(f"the certificate has the key {pin}, which is none of pins")
