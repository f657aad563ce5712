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
    assert [" ".join(line.split()) for line in cli("upstreams", "list").stdout.splitlines()] == [
        "NAME ADDRESS BROKER STATE SINCE WHY OPEN WEIGHT ZONE TLS",
        "brokers 10.1.0.1:9092 - up - - 7 2 a no",
        "brokers 10.1.0.2:9092 3 down 1970-01-01 00:00:01 UTC refused: Connection refused; out in 2 processors 0 1 - no",
    ]
    listed = cli.json("upstreams", "list")[0]["endpoint_states"]
    assert [(row["state"], row.get("node_id"), row.get("latency")) for row in listed] == [("STATE_UP", None, "0.003s"), ("STATE_DOWN", 3, None)]
    assert cli.json("upstreams", "list")[0]["endpoints"] == ["broker:9092"]
    cli.plane.desired.config = dataclasses.replace(cli.plane.config, upstreams=())
    none = cli("upstreams", "list")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "framegate: no upstreams\n")
    assert cli.json("upstreams", "list") == []
