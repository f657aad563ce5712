"""What the tests of several packages of the proxy share."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tests.fakes.network import NetBench, net_bench
from tests.fakes.world import World

T = TypeVar("T", bound=Any)


@pytest.fixture
def net() -> Iterator[NetBench]:
    """One selector and what goes with it; afterwards nothing may be left."""
    with net_bench() as bench:
        yield bench


@contextlib.contextmanager
def builder(kind: Callable[..., T]) -> Iterator[Callable[..., T]]:
    """Makes what has a ``close``; all of it is closed in its order."""
    made: list[T] = []

    def build(*args: object, **options: object) -> T:
        made.append(kind(*args, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    with builder(World) as build:
        yield build


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    """One of them, as it is without arguments."""
    return make()
