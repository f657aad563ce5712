"""Tests that are coroutines."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


def run_by(run: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a coroutine function: it is run as ``run(coroutine, *arguments, **options)``. ``run`` gives its positional parameters; its
    keyword-only parameters are fixtures and parameters of pytest.
    """

    def decorate(scenario: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(scenario)
        def test(**given: Any) -> None:
            run(functools.partial(scenario, **given), *arguments, **options)

        signature = inspect.signature(scenario)
        named = [parameter for parameter in signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
        test.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return test

    return decorate


def within_10_s(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, for ten seconds at most."""

    async def main() -> None:
        async with asyncio.timeout(10):
            await scenario()

    asyncio.run(main())
