"""Asynchronous tests with a service, and calls that fail."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from framegate.proxy.config.model import TapConfig
from tests.fakes.serving import run


def served(tap: TapConfig | None = None) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an asynchronous test with a service at hand, which is its first parameter."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_test(**arguments: Any) -> None:
            run(lambda at: test(at, **arguments), tap=tap)

        parameters = list(inspect.signature(test).parameters.values())
        run_test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
        return run_test

    return decorate


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def code_of(call: Any) -> grpc.StatusCode:
    """The code of a call that must fail."""
    return (await failure_of(call)).code()


async def refused(call: Any) -> tuple[grpc.StatusCode, str, list[str]]:
    """Code, reason and the wrong fields of a call that must fail."""
    failure = await failure_of(call)
    status = rpc_status.from_call(failure)  # type: ignore[arg-type]
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    fields = [item.field for detail in status.details[1:] if detail.Unpack(bad) for item in bad.field_violations]
    return failure.code(), info.reason, fields
