"""Hypothesis without a stopwatch and without dice: the machine may be busy, and a test that failed once fails again."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.fakes.network import NetBench, net_bench
from tests.fakes.tls import TlsWorld

settings.register_profile("framegate", deadline=None, derandomize=True)
settings.load_profile("framegate")


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def net() -> Iterator[NetBench]:
    """One selector and what goes with it; afterwards nothing may be left."""
    with net_bench() as bench:
        yield bench
