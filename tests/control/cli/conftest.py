"""The command line against a fake control plane."""

from collections.abc import Iterator

import pytest

from tests.fakes.cli import Cli, served


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served() as made:
        yield made
