"""The columns of a list of channels."""

from tests.fakes.cli import Cli
from tests.fakes.plane import channel_row, closed_row


def test_what_went_with_a_processor_is_shown_as_not_known(cli: Cli) -> None:
    unknown = {"request": None, "response": None}
    cli.plane.tell(closed_row("0-1-1", "processor_died", frames=unknown, bytes=unknown, lost={"bytes": None, **unknown}))
    assert cli("channels", "list", "--closed").stdout.splitlines()[1].split()[5:8] == ["?", "?", "?"]
    assert "unknown" in cli("channels", "describe", "0-1-1").stdout
    (row,) = cli.json("channels", "list", "--closed")
    assert ("request" in row, "lost_bytes" in row["close"]) == (False, False)


def test_list_sorts_and_has_the_columns_of_ones_question(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-7"), channel_row("1-1-8", "plain"))
    cli.plane.add(channel_row("0-1-9", leased=5 << 20, muted=["memory"], muted_ns=1, client_id="billing-7"))
    result = cli("channels", "list", "--sort", "held", "--columns", "id,held,client_id,waiting,bytes_rate,throttle,software")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ID", "HELD", "CLIENT", "ID", "WAITING", "BYTES", "RATE", "THROTTLE", "SOFTWARE"]
    assert lines[1].split()[:4] == ["0-1-9", "5", "MiB", "billing-7"]
    assert "memory; upstream: peer" in lines[1]
    assert "0 B/s" in lines[1]
    assert "apache-kafka-java 3.7.0" in lines[1]
    assert [line.split()[0] for line in cli("channels", "list", "--sort", "listener").stdout.splitlines()[1:]] == ["0-1-7", "0-1-9", "1-1-8"]
    assert len(cli("channels", "list", "--columns", "wide").stdout.splitlines()[0].split()) > 20
    assert [row["id"] for row in cli.json("channels", "list", "--filter", "held>1MiB waiting=memory")] == ["0-1-9"]


def test_requests_in_flight_that_cannot_be_counted_are_not_shown_as_0(cli: Cli) -> None:
    waits = {"in_flight": 0, "oldest_ns": 1}
    cli.plane.add(channel_row("0-1-7", in_flight=0, oldest_ns=0), channel_row("0-1-8", **waits), channel_row("0-1-9", in_flight=2, oldest_ns=1))
    lines = cli("channels", "list", "--columns", "id,in_flight").stdout.splitlines()[1:]
    assert [line.split() for line in lines] == [["0-1-7", "0"], ["0-1-8", "-"], ["0-1-9", "2"]]
