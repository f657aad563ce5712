"""What the tests of several packages of the proxy share."""

from collections.abc import Iterator

import pytest

from tests.fakes.network import NetBench, net_bench


@pytest.fixture
def net() -> Iterator[NetBench]:
    """One selector and what goes with it; afterwards nothing may be left."""
    with net_bench() as bench:
        yield bench
