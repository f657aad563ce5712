"""The API versions of an upstream, for clients that ask before they authenticate.

Brokers answer ApiVersions without authentication. So control asks them, over connections of its own, now and then; a processor could only know
what it has once spoken to. Several endpoints are asked, and what all that answer understand is told: a client does not know which one it will get.

A broker's features (KIP-584) are in the tagged fields of versions 3 and 4, and are not the same in both: 3 says nothing of level 0. So both are
asked, each over a connection of its own since a broker answers one; what it said in a version is what clients are told that ask in that one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from framegate.control.accept.broker_connection import TlsOf, Wire, connected
from framegate.control.identity.auth_responder import UnknownApisError
from framegate.control.logs import RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.auth.messages import (
    API_VERSIONS,
    NONE,
    UNSUPPORTED_VERSION,
    ApiRange,
    ApiVersionsAnswer,
    ApiVersionsRequest,
    RequestHeader,
    answer_reader,
    request_writer,
)
from framegate.proxy.errors import ProxyError

INTERVAL_S: Final = 60.0  # between two looks at what is known: brokers are upgraded
PAUSE_S: Final = 0.5  # after a look that found nothing; it doubles, up to ``MOST_PAUSE_S``, unless somebody wants to know
MOST_PAUSE_S: Final = 30.0
TAGGED: Final = (4, 3)  # Versions of ApiVersions whose answers have tagged fields, the newest that we know first
EPOCH, FINALIZED = 1, 2  # Tagged fields that the brokers of a cluster have in common, in time: of the features that are in force


def common_ranges(answers: Sequence[Sequence[ApiRange]]) -> tuple[ApiRange, ...]:
    """What all of them understand, by key."""
    first, *others = [{item.key: item for item in answer} for answer in answers]
    found = []
    for key, mine in sorted(first.items()):
        same = [mine, *(other[key] for other in others if key in other)]
        least, most = max(item.least for item in same), min(item.most for item in same)
        if len(same) == len(answers) and least <= most:
            tags = tuple(tag for tag in mine.tags if all(tag in item.tags for item in same))
            found.append(ApiRange(key, least, most, tags))
    return tuple(found)


def common(answers: Sequence[ApiVersionsAnswer]) -> ApiVersionsAnswer:
    """What all of them say. Of the features in force what the one says that knows of the latest change: the others will."""
    latest = max(answers, key=_epoch)
    tags = tuple((tag, data) for tag, data in latest.tags if tag in (EPOCH, FINALIZED) or all((tag, data) in answer.tags for answer in answers))
    return ApiVersionsAnswer(NONE, common_ranges([answer.ranges for answer in answers]), tags)


def _epoch(answer: ApiVersionsAnswer) -> int:
    return next((int.from_bytes(data, "big", signed=True) for tag, data in answer.tags if tag == EPOCH), -1)


def _header(version: int) -> RequestHeader:
    return RequestHeader(API_VERSIONS, version, 1, "framegate")


def question(version: int = 0) -> bytes:
    """The request; every broker knows version 0 of it, and answers before anybody has logged in."""
    request = request_writer(_header(version))
    ApiVersionsRequest("framegate", "1").write(request, version)
    return request.message()


def answer_in(body: bytes, version: int) -> ApiVersionsAnswer:
    """The answer, without its size, which may be that the version is not known. Raises OSError: it is a refusal; MalformedError: it is no answer."""
    reader = answer_reader(body, _header(version))
    unknown = body[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big")
    answer = ApiVersionsAnswer.read(reader, 0 if unknown else version)
    if (unknown and version == 0) or (not unknown and (answer.error != NONE or not answer.ranges)):
        raise OSError(f"ApiVersions is answered with error {answer.error}")
    return answer


def ranges_in(body: bytes) -> tuple[ApiRange, ...]:
    """What the answer to version 0 says; see ``answer_in``."""
    return answer_in(body, 0).ranges


class ApiVersions:
    """One upstream's. On the event loop, but for ``known``."""

    def __init__(
        self,
        upstream: str,
        addresses: Callable[[], Sequence[Wire]],
        tls: TlsOf,
        log: RowLog,
        task_monitor: TaskMonitor,
        *,
        timeout_s: float,
        header: bytes = b"",
        interval_s: float = INTERVAL_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._upstream: Final = upstream
        self._addresses: Final = addresses
        self._tls: Final = tls
        self._log: Final = log
        self._task_monitor: Final = task_monitor
        self._timeout_s: Final = timeout_s
        self._header: Final = header
        self._interval_s: Final = interval_s
        self._pause_s: Final = pause_s
        self._known: dict[int, ApiVersionsAnswer] = {}  # by the version that is asked: those of ``TAGGED``
        self._error = "it has not been asked yet"
        self._loop: Final = asyncio.get_running_loop()
        self._wanted: Final = asyncio.Event()
        self._task: Final = asyncio.create_task(self._run())

    def known(self, version: int) -> ApiVersionsAnswer:
        """What it understands, as it says to who asks in this version. Any thread. Raises UnknownApisError: it has not been reached yet, and why."""
        known = self._known
        if not known:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wanted.set)
            raise UnknownApisError(f"what the upstream {self._upstream} understands is not known: {self._error}")
        return known[TAGGED[0] if version >= TAGGED[0] else TAGGED[-1]]

    def cancel(self) -> None:
        self._task.cancel()

    async def stop(self) -> None:
        """Ask no more, and wait for the end of what is being asked."""
        self.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = self._pause_s
        while True:
            try:
                await self._look()
            except Exception as error:  # of ours; it costs one look
                self._error = repr(error)
                self._task_monitor.failed("api_versions", error)
            await asyncio.sleep(self._pause_s)
            if self._known and not self._error:
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
        answers = [found for found in asked if isinstance(found, dict)]
        errors = [str(found) or type(found).__name__ for found in asked if isinstance(found, BaseException)]
        error = "" if answers else errors[0] if errors else "it has no address"
        if answers:
            self._known = {version: common([found.get(version) or found[min(found)] for found in answers]) for version in TAGGED}
        if error and error != self._error:
            self._log.write("api_versions_failed", level="warning", upstream=self._upstream, error=error)
        self._error = error

    async def _ask(self, address: Wire) -> dict[int, ApiVersionsAnswer]:
        """What one endpoint says in each version of ``TAGGED`` that it knows; in version 0 if it knows none. Errors as ``_exchange``."""
        found: dict[int, ApiVersionsAnswer] = {}
        for version in TAGGED:
            answer = await self._exchange(address, version)
            if answer.error == NONE:
                found[version] = answer
        return found or {0: await self._exchange(address, 0)}

    async def _exchange(self, address: Wire, version: int) -> ApiVersionsAnswer:
        """One question, over a connection of its own. Raises OSError (TimeoutError is one), EOFError or ProxyError."""
        async with asyncio.timeout(self._timeout_s), connected(address, self._tls, self._header) as connection:
            return answer_in(await connection.ask(question(version)), version)
