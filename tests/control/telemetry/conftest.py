"""A plane whose cells the tests fill."""

from collections.abc import Iterator

import pytest

from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    plane = FakePlane(fake_config("unix:unused", None))
    yield plane
    plane.close()
