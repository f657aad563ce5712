"""What the tests of this room share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_umask() -> Iterator[None]:
    """What is restricted is so by our own doing."""
    before = os.umask(0)
    yield
    os.umask(before)
