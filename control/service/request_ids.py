"""The answers of calls with a request id: who repeats a call, because the answer was lost, gets the first answer, and nothing is changed again."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from google.protobuf.message import Message

from framegate.control.errors import ControlError, InvalidArgumentError, Violation

KEPT_S: Final = 600.0
MAX_COUNT: Final = 1_000
MAX_BYTES: Final = 16 * 1024 * 1024  # of all answers that are kept; the oldest are dropped first


class _Call:
    """A call. ``answer``: None before its end; its class and its bytes, because a message takes several times as many; or an error: the change is
    decided, but not in force everywhere.
    """

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.ended = asyncio.Event()
        self.answer: tuple[type[Message], bytes] | ControlError | None = None
        self.until_s = 0.0
        self.size = 0


class RequestIds:
    """Event loop only. ``clock``: monotonic, in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[tuple[str, str], _Call] = {}
        self._kept: OrderedDict[tuple[str, str], _Call] = OrderedDict()
        self._size = 0

    async def once(self, method: str, request_id: str, data: bytes, make: Callable[[], Awaitable[Any]]) -> Any:
        """The answer of ``make``, or that of an earlier call of the method with the same id. A call that failed is made again. ``data``: the bytes of
        the request. Raises InvalidArgumentError: the id was used for another request.
        """
        self._drop()
        key, digest = (method, request_id.lower()), hashlib.blake2b(data).digest()
        while (known := self._calls.get(key)) is not None:
            if known.digest != digest:
                raise InvalidArgumentError([Violation("request_id", "was used for another request")])
            await known.ended.wait()
            if isinstance(known.answer, ControlError):
                raise known.answer
            if known.answer is not None:
                kind, kept = known.answer
                return kind.FromString(kept)
        call = self._calls[key] = _Call(digest)
        try:
            answer = await make()
            kept = answer.SerializeToString()
            self._keep(key, call, (type(answer), kept), len(kept))
        except ControlError as error:
            if error.changed is not None:
                self._keep(key, call, error, len(error.message))
            raise
        finally:
            if call.answer is None:
                del self._calls[key]
            call.ended.set()
        return answer

    def _keep(self, key: tuple[str, str], call: _Call, answer: tuple[type[Message], bytes] | ControlError, size: int) -> None:
        call.answer, call.until_s, call.size = answer, self._clock() + KEPT_S, size
        self._kept[key] = call
        self._size += size
        self._drop()

    def _drop(self) -> None:
        """Forget what is too old, or too much."""
        while self._kept:
            key, call = next(iter(self._kept.items()))
            if call.until_s > self._clock() and len(self._kept) <= MAX_COUNT and self._size <= MAX_BYTES:
                return
            del self._kept[key], self._calls[key]
            self._size -= call.size
