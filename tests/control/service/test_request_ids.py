"""A call that is repeated with its request id gets the first answer, and nothing is changed again."""

import asyncio
import contextlib

import pytest

from framegate.control.errors import AbortedError, InvalidArgumentError, UnavailableError
from framegate.control.service.request_ids import KEPT_S, MAX_BYTES, MAX_COUNT, RequestIds
from framegate.control.v1.log_service_pb2 import Log


class Calls:
    """Makes calls; each is counted, and answered with its number, or as ``ends`` says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ids = RequestIds(lambda: self.now_s)
        self.count = 0
        self.text = ""
        self.ends: list[asyncio.Future[None]] = []

    async def make(self) -> Log:
        self.count += 1
        count = self.count
        if self.ends:
            await self.ends.pop()
        return Log(dropped_row_count=count, etag=self.text)

    async def __call__(self, request_id: str = "a", data: bytes = b"x", method: str = "M") -> int:
        answer: Log = await self.ids.once(method, request_id, data, self.make)
        return answer.dropped_row_count


def test_a_repeated_call_has_the_first_answer_for_ten_minutes_and_ids_are_of_a_method() -> None:
    async def main() -> None:
        call = Calls()
        assert [await call("a"), await call("A"), await call("b"), await call("a", method="N")] == [1, 1, 2, 3]
        with pytest.raises(InvalidArgumentError):
            await call("a", b"another request")
        call.now_s = KEPT_S - 0.001
        assert await call("a") == 1
        call.now_s = KEPT_S
        assert await call("a") == 4

    asyncio.run(main())


@pytest.mark.parametrize(("failure", "second"), [(None, 1), (AbortedError("no", reason="X"), 2), (asyncio.CancelledError(), 2)])
def test_a_call_that_comes_meanwhile_waits_for_the_first_and_is_made_only_if_that_one_failed(failure: BaseException | None, second: int) -> None:
    async def main() -> None:
        call, end = Calls(), asyncio.get_running_loop().create_future()
        call.ends.append(end)
        first, repeated = asyncio.ensure_future(call()), asyncio.ensure_future(call())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert call.count == 1
        if failure is None:
            end.set_result(None)
        elif isinstance(failure, asyncio.CancelledError):
            first.cancel()
        else:
            end.set_exception(failure)
        with contextlib.suppress(AbortedError, asyncio.CancelledError):
            await first
        assert (await repeated, await call()) == (second, second)

    asyncio.run(main())


def test_a_change_that_is_decided_is_not_made_again_though_its_call_failed() -> None:
    async def main() -> None:
        call, end = Calls(), asyncio.get_running_loop().create_future()
        pending = UnavailableError("it is decided", reason="CHANGE_PENDING")
        pending.changed = (1, 2)
        end.set_exception(pending)
        call.ends.append(end)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await call()
        assert call.count == 1

    asyncio.run(main())


def test_what_is_kept_has_a_bound_in_number_and_in_bytes() -> None:
    async def main() -> None:
        call = Calls()
        for number in range(MAX_COUNT + 1):
            await call(str(number))
        assert (await call("1"), await call("0")) == (2, MAX_COUNT + 2), "the oldest is forgotten"
        call.text = "x" * (MAX_BYTES // 2 - 100)
        for number in range(3):
            await call(f"large {number}")
        assert len(call.ids._calls) == len(call.ids._kept) == 2

    asyncio.run(main())
