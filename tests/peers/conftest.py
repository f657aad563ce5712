"""One broker and one framegate for everything here; and the tables in which the run ends: what each client did, and what it printed where not."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.clients import CLIENTS, Client, require
from tests.peers.table import TABLES, table

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from tests.peers.world import World, open_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require()
    with open_world(tmp_path_factory.mktemp("peers")) as opened:
        yield opened


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Client:
    name = request.getfixturevalue("name")
    require((name,))
    return CLIENTS[name]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tables: cells are what tests recorded under a table's name, or how they ended."""
    cells: dict[str, dict[tuple[str, str], str]] = {name: {} for name in TABLES}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            recorded = dict(getattr(report, "user_properties", ()))
            for name in TABLES:
                for row, column, text in recorded.get(name, ()):
                    cells[name][row, column] = text if outcome == "passed" else outcome.upper()
    for name, known in TABLES.items():
        if cells[name]:
            terminalreporter.section(name)
            terminalreporter.write("\n".join(table(cells[name], known)) + "\n")
