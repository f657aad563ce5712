"""``framegate handlers``."""

from tests.fakes.cli import Cli
from tests.fakes.plane import handler_process


def test_list_shows_each_process_and_its_handlers(cli: Cli) -> None:
    cli.plane.handlers = [handler_process(), handler_process(1, pid=0, state="restarting", in_handler=0, oldest_ms=0, busy=0.0, handlers=())]
    heading, first, second = cli("handlers", "list").stdout.splitlines()
    assert heading.split()[:4] == ["SLOT", "PID", "STATE", "RESTARTS"]
    assert first.split()[2:5] == ["running", "1", "timeout"]
    assert "25%" in first
    assert first.rstrip().endswith("plain: framegate.proxy.handler.echo:echo (requests)")
    assert second.split()[:3] == ["1", "-", "restarting"]
    assert second.rstrip().endswith("-")
    rows = cli.json("handlers", "list")
    assert [(row["slot"], row["handled_count"], row["last_end_reason"]) for row in rows] == [
        (0, 500, "END_REASON_TIMEOUT"),
        (1, 500, "END_REASON_TIMEOUT"),
    ]
    assert rows[0]["handlers"][0]["name"] == "framegate.proxy.handler.echo:echo"
