"""``framegate top``."""

import asyncio
import os
import pty
import re
import subprocess
import sys

from framegate.proxy.server.rows import ClientRow
from tests.fakes.cli import Cli
from tests.fakes.framegate import ROOT
from tests.fakes.plane import channel_row


def used(measure: str, amount: int, *client: str) -> ClientRow:
    return ClientRow(measure=measure, client=["kafka", *client], amount=amount)


def test_without_a_terminal_processors_and_channels_are_shown_once(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-7", leased=10), channel_row("1-1-8", leased=20), channel_row("1-1-9", "plain", leased=30))
    lines = cli("top", "--sort", "held", "--filter", "listener=kafka", "--every", "20ms").stdout.splitlines()
    assert lines[0].endswith(", 2 channels by held")
    assert [line.split()[0] for line in lines[2:5]] == ["PROCESSOR", "0", "1"]
    assert [line.split()[0] for line in lines[6:]] == ["ID", "1-1-8", "0-1-7"]
    found = cli.json("top", "--every", "20ms")
    assert ([item["slot"] for item in found["processors"]], len(found["channels"]), found["total_count"]) == ([0, 1], 3, 3)
    assert "--filter: character 1" in cli("top", "--filter", "colour=red").stderr


def test_the_clients_that_use_most_are_shown_by_each_measure_with_their_shares(cli: Cli) -> None:
    cli.plane.client_rows = [used("held", 3 << 20, "ann", "billing", "10.0.0.1"), used("logins", 30, "bob", "", "10.0.0.2")]
    asyncio.run(cli.plane.parts.clients.look())
    lines = [line.split() for line in cli("top", "--every", "20ms").stdout.splitlines()]
    assert ["3", "MiB", "100%", "kafka", "ann", "billing", "10.0.0.1"] in lines
    assert lines[-1][1:] == ["100%", "kafka", "bob", "-", "10.0.0.2"]
    rankings = {item["measure"]: item["clients"] for item in cli.json("top", "--every", "20ms")["rankings"]}
    assert [(name, [client["principal"] for client in clients]) for name, clients in rankings.items() if clients] == [
        ("CLIENT_MEASURE_HELD", ["ann"]),
        ("CLIENT_MEASURE_LOGINS", ["bob"]),
    ]
    assert len(rankings) == 5


def test_on_a_terminal_keys_sort_and_quit_and_the_terminal_is_left_as_it_was(cli: Cli) -> None:
    cli.plane.add(channel_row("0-1-7", leased=10), channel_row("1-1-8", leased=20))
    keeper, terminal = pty.openpty()
    command = [sys.executable, "-m", "framegate.control.cli", "top", "--address", cli.address, "--every", "20ms"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "20"}
    process = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(keeper, 65_536).decode()

    until("2 channels by bytes_rate")
    os.write(keeper, b"x")
    os.write(keeper, b"h")
    until("2 channels by held")
    cli.plane.client_rows = [used("bytes", 30, "ann", "billing", "10.0.0.1")]
    asyncio.run(cli.plane.parts.clients.look())
    os.write(keeper, b"c")
    until("billing")
    os.write(keeper, b"q")
    until("\033[?1049l")
    assert process.wait(20) == 0
    os.close(keeper)
    screens = shown.split("\033[H")
    assert screens[0].endswith("\033[?1049h\033[?25l")
    assert max(len(line) for screen in screens[1:] for line in re.sub(r"\033\[\??\d*[a-zA-Z]", "", screen).splitlines()) <= 120
