"""``framegate listeners``."""

from tests.fakes.cli import served


def test_list_shows_each_listener() -> None:
    with served() as cli:
        lines = cli("listeners", "list").stdout.splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [["kafka", "127.0.0.1:9093", "kafka"], ["plain", "127.0.0.1:9094", "framed"]]
        assert [line.split()[7:9] for line in lines[1:]] == [["whole", "cut_through"]] * 2
        assert [row["request_forwarding"] for row in cli.json("listeners", "list")] == ["FORWARDING_WHOLE"] * 2
        assert [row["max_connection_count"] for row in cli.json("listeners", "list")] == [0, 10]
