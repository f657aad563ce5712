"""``framegate listeners`` and ``framegate upstreams``."""

import dataclasses

from tests.fakes.cli import Cli


def test_list_shows_each_listener(cli: Cli) -> None:
    lines = cli("listeners", "list").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["kafka", "127.0.0.1:9093", "kafka"], ["plain", "127.0.0.1:9094", "framed"]]
    assert [line.split()[7:9] for line in lines[1:]] == [["whole", "cut_through"]] * 2
    assert [row["request_forwarding"] for row in cli.json("listeners", "list")] == ["FORWARDING_WHOLE"] * 2
    assert [row["max_connection_count"] for row in cli.json("listeners", "list")] == [0, 10]


def test_list_shows_each_upstream(cli: Cli) -> None:
    assert cli("upstreams", "list").stdout.splitlines()[1].split()[:3] == ["brokers", "broker:9092", "10.1.0.1:9092"]
    assert "10.1.0.2:9092 (refused)" in cli("upstreams", "list").stdout
    assert cli.json("upstreams", "list")[0]["endpoints"] == ["broker:9092"]
    cli.plane.desired.config = dataclasses.replace(cli.plane.config, upstreams=())
    none = cli("upstreams", "list")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "framegate: no upstreams\n")
    assert cli.json("upstreams", "list") == []
