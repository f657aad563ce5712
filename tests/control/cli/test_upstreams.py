"""``framegate upstreams``."""

from tests.fakes.cli import served


def test_list_shows_each_upstream() -> None:
    with served() as cli:
        assert cli("upstreams", "list").stdout.splitlines()[1].split()[:3] == ["brokers", "broker:9092", "10.1.0.1:9092"]
        assert "10.1.0.2:9092 (refused)" in cli("upstreams", "list").stdout
        assert cli.json("upstreams", "list")[0]["endpoints"] == ["broker:9092"]
