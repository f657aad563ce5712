"""``framegate status`` and ``framegate drain``."""

from tests.fakes.cli import served
from tests.fakes.plane import channel_row


def test_status_says_what_runs() -> None:
    with served() as cli:
        text = cli("status").stdout
        assert ("edge-1" in text, "serving" in text, "plain Python" in text) == (True, True, True)
        assert cli.json("status")["module_files"] == {"proxy.network.framing": "/x/framing.py"}


def test_drain_waits_unless_told_not_to() -> None:
    with served() as cli:
        cli.plane.add(channel_row("0-1-1"))
        assert cli.json("drain", "--no-wait") == {"closed_connection_count": 0, "open_connection_count": 1}
        assert cli("drain", "--timeout", "1500ms", "--reason", "rollout").stdout == "drained: 1 connection ended, none left\n"
        cli.plane.add(channel_row("0-1-2"), channel_row("0-1-3"))
        assert cli("drain", "--no-wait").stdout == "draining: 0 connections ended, 2 left\n"
        assert cli.plane.asked == [("drain", None, False), ("drain", 1500, True), ("drain", None, False)]
