"""Crowds over plaintext and TLS, ended with every test: the pool is whole then, and every gauge zero."""

from collections.abc import Callable, Iterator

import pytest

from tests.fakes.crowd import Crowd
from tests.fakes.tls import TlsWorld


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    """Certificates, made once for all tests."""
    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls"])
def make_crowd(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Callable[..., Crowd]]:
    """Makes crowds with the options of ``Crowd``."""
    crowds: list[Crowd] = []

    def build(protocol: str = "framed", **options: object) -> Crowd:
        crowds.append(Crowd(protocol, tls=tls_world if request.param == "tls" else None, **options))
        return crowds[-1]

    yield build
    for crowd in crowds:
        crowd.close()
