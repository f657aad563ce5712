"""The log of a running framegate: which rows, how, and what is changed while it runs."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import ROOT, Framegate
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import ask, peer_name


@pytest.mark.slow
def test_a_connection_has_a_row_when_it_is_open_where_that_is_wanted(tmp_path: Path, plain: dict[str, Any]) -> None:
    tls = TlsWorld.make(tmp_path)
    secure = {**plain["listeners"][0], "name": "tls", "tls": {"certificate": tls.server[0], "key": tls.server[1]}}
    plain["listeners"].append(secure)
    context = tls.client_settings().context
    with Framegate(tmp_path / "proxy", {**plain, "log": {"access": {"open": True}}}) as proxy:
        for listener, session in (("plain", None), ("tls", context)):
            with proxy.connect(listener, session) as client:
                peer = peer_name(client)
                opened = proxy.wait_row(lambda row, peer=peer: row["event"] == "opened" and row["peer"] == peer)  # type: ignore[misc]
                assert [row for row in proxy.events("closed") if row["peer"] == peer] == []
                assert (opened["level"], opened["listener"], opened["attempts"]) == ("info", listener, 1)
                assert (opened["handshake_ns"] is not None) is (listener == "tls")
                assert 0 <= opened["connect_ns"] < 10**10
                assert opened["opened_ns"] <= opened["connect_started_ns"] <= time.time_ns()
                assert ask(client, b"hello") == b"hello"
            closed = proxy.closed_row(peer)
            assert {key: closed[key] for key in ("id", "handshake_ns", "connect_ns", "attempts")} == {
                key: opened[key] for key in ("id", "handshake_ns", "connect_ns", "attempts")
            }
            assert closed["frames"] == {"request": 1, "response": 1}


@pytest.mark.slow
def test_levels_and_events_are_changed_while_it_runs_and_audit_rows_stay(tmp_path: Path, plain: dict[str, Any]) -> None:
    with Framegate(tmp_path / "proxy", plain) as proxy:

        def connect() -> str:
            with proxy.connect("plain") as client:
                assert ask(client, b"hello") == b"hello"
                return peer_name(client)

        proxy.closed_row(connect())
        assert not proxy.events("opened"), "nobody wants to know"
        assert proxy.cli("log", "set", "--level", "error").returncode == 0
        silent = connect()
        assert proxy.cli("log", "set", "--level", "info", "--event", "closed=off").returncode == 0
        silenced = connect()
        done = proxy.cli("log", "set", "--event", "closed=on")
        assert done.stdout == "level info, format json; 0 rows dropped since the start\n"
        proxy.closed_row(connect())
        assert not [row for row in proxy.events("closed") if row["peer"] in (silent, silenced)]
        assert [(row["before"], row["after"]) for row in proxy.events("audit")] == [
            ({"level": "info"}, {"level": "error"}),
            ({"level": "error", "silenced_events": []}, {"level": "info", "silenced_events": ["closed"]}),
            ({"silenced_events": ["closed"]}, {"silenced_events": []}),
        ]
        assert not any("rows_dropped" in row for row in proxy.rows)


def serve(folder: Path, config: dict[str, Any], *options: str, terminal: bool, environment: dict[str, str] | None = None) -> list[str]:
    """The lines that ``framegate serve`` prints from its start to its end, to a terminal or to a pipe."""
    folder.mkdir(exist_ok=True)
    path = folder / "framegate.yaml"
    path.write_text(json.dumps({"node": "n", "processors": 1, "admin": {"address": "unix:admin.sock"}, **config}))
    reader, writer = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "framegate.control.cli", "serve", "--config", str(path), *options]
    process = subprocess.Popen(command, stdout=writer, cwd=ROOT, env={**os.environ, **(environment or {})})
    os.close(writer)
    data = b""
    try:
        while True:
            try:
                more = os.read(reader, 65536)
            except OSError:  # a terminal that nobody has open any more
                break
            if not more:
                break
            data += more
            if b"serving" in data and process.poll() is None:
                process.send_signal(signal.SIGTERM)
    finally:
        os.close(reader)
        process.kill()
        process.wait()
    return data.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terminal", "environment", "coloured", "configured", "options"),
    [
        (True, {"TERM": "xterm"}, True, "text", ()),
        pytest.param(True, {"TERM": "xterm", "NO_COLOR": "1"}, False, "text", (), marks=pytest.mark.extended),
        (False, {}, False, "json", ("--log-format", "text")),
    ],
)
def test_text_is_one_line_a_row_and_in_colour_at_a_terminal_only_and_the_command_wins_over_the_configuration(
    tmp_path: Path, plain: dict[str, Any], terminal: bool, environment: dict[str, str], coloured: bool, configured: str, options: tuple[str, ...]
) -> None:
    unset = {"NO_COLOR": "", **environment}
    lines = serve(tmp_path, {**plain, "log": {"format": configured}}, *options, terminal=terminal, environment=unset)
    text = "\n".join(lines)
    assert ("\033[" in text) is coloured
    (stopping,) = [line for line in lines if " stopping " in line]
    assert stopping.endswith(" stopping framegate is stopping. reason=signal")
    if not coloured:
        assert stopping[24:33] == " INFO    "
        assert text.isprintable() or all(line.isprintable() for line in lines)
