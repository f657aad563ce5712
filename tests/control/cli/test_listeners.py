"""``framegate listeners``, ``framegate upstreams`` and ``framegate brokers``."""

import dataclasses

from tests.fakes.cli import Cli
from tests.fakes.plane import broker_status
from tests.fakes.rows import refused_frame_row


def test_list_shows_each_listener(cli: Cli) -> None:
    lines = cli("listeners", "list").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["kafka", "127.0.0.1:9093", "kafka"], ["plain", "127.0.0.1:9094", "framed"]]
    assert [line.split()[7:9] for line in lines[1:]] == [["whole", "cut_through"]] * 2
    assert [row["request_forwarding"] for row in cli.json("listeners", "list")] == ["FORWARDING_WHOLE"] * 2
    assert [row["max_connection_count"] for row in cli.json("listeners", "list")] == [0, 10]


def test_list_shows_each_upstream(cli: Cli) -> None:
    assert [" ".join(line.split()) for line in cli("upstreams", "list").stdout.splitlines()] == [
        "NAME ADDRESS BROKER STATE SINCE WHY OPEN WEIGHT ZONE TLS",
        "brokers 10.1.0.1:9092 - up - - 14 2 a no",
        "brokers 10.1.0.2:9092 3 down 1970-01-01 00:00:01 UTC refused: Connection refused; out in 2 processors 0 1 - no",
    ]
    listed = cli.json("upstreams", "list")[0]["endpoint_states"]
    assert [(row["state"], row.get("node_id"), row.get("latency")) for row in listed] == [("STATE_UP", None, "0.003s"), ("STATE_DOWN", 3, None)]
    assert cli.json("upstreams", "list")[0]["endpoints"] == ["broker:9092"]
    cli.plane.desired.config = dataclasses.replace(cli.plane.config, upstreams=())
    none = cli("upstreams", "list")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "framegate: no upstreams\n")
    assert cli.json("upstreams", "list") == []


def test_list_shows_each_broker_with_its_state_and_why(cli: Cli) -> None:
    cli.plane.brokers = [
        broker_status(0, rack="a", connections=3),
        broker_status(7, advertised="", state="no_port", reason="the range 9100-9102 has no port for it"),
    ]
    lines = cli("brokers", "list").stdout.splitlines()
    assert lines[0].split() == ["UPSTREAM", "LISTENER", "NODE", "ADDRESS", "ADVERTISED", "RACK", "STATE", "OPEN"]
    assert lines[1].split() == ["brokers", "kafka", "0", "b0:9092", "edge:9100", "a", "up", "3"]
    assert lines[2].split()[:6] == ["brokers", "kafka", "7", "b7:9092", "-", "-"]
    assert "  no_port: the range 9100-9102 has no port for it  " in lines[2]
    assert [row["state"] for row in cli.json("brokers", "list", "--upstream", "brokers")] == ["STATE_UP", "STATE_NO_PORT"]
    assert cli("brokers", "list", "--upstream", "none").exit_code == 3
    assert cli("brokers", "list", "--upstream", "").exit_code == 2
    cli.plane.brokers = []
    none = cli("brokers", "list")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no brokers" in none.stderr


def test_refused_frames_are_a_table_with_their_first_bytes(cli: Cli) -> None:
    assert "no frames were refused" in cli("listeners", "refused", "kafka").stderr
    cli.plane.parts.refused_frames.note(refused_frame_row())
    cli.plane.parts.refused_frames.note(refused_frame_row(principal="", client_id="", head="", side="upstream", rule="etl", report_only=True))
    headings, second, first = cli("listeners", "refused", "kafka").stdout.splitlines()
    assert headings.split() == ["TIME", "ID", "SIDE", "ADDRESS", "PRINCIPAL", "CLIENT", "ID", "SIZE", "LIMIT", "RULE", "REFUSED", "FIRST", "BYTES"]
    assert " ".join(first.split()[4:]) == "downstream 10.0.0.9:51000 CN=client billing-7 2000000 1000000 - yes 001e8480 00000003 00000007 00046164"
    assert second.split()[4:] == ["upstream", "10.0.0.9:51000", "-", "-", "2000000", "1000000", "etl", "no", "-"]
    assert cli("listeners", "refused", "none").exit_code == 3
