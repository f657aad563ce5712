"""Tables and JSON."""

import io
import json
import os
import sys
from collections.abc import Iterator

import pytest

from framegate.control.cli.output import age_text, as_dict, print_fields, print_json, print_table, size_text
from framegate.control.service.convert import channel_message
from framegate.control.v1 import pool_service_pb2 as pool_pb2
from tests.fakes.cases import each_of
from tests.fakes.cli import Cli, run_cli, served
from tests.fakes.plane import channel_row, closed_row


@each_of(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (100 << 20, "100 MiB"), (2**31 - 1, "2 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_are_written_as_people_read_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_int64_is_a_number_however_deep_and_maps_stay() -> None:
    pool = pool_pb2.MemoryPool(size_bytes=2**40, shares=[pool_pb2.MemoryShare(size_bytes=2**39)], guaranteed_percents={"kafka": 60})
    zeroes = {"usage_bytes": 0, "begun_bytes": 0, "pending_bytes": 0, "tls_bytes": 0, "tap_bytes": 0, "waiting_count": 0}
    assert as_dict(pool) == {
        **zeroes,
        "etag": "",
        "kind": "KIND_UNSPECIFIED",
        "size_origin": "ORIGIN_UNSPECIFIED",
        "size_bytes": 2**40,
        "tap_limit_bytes": 0,
        "guaranteed_percents": {"kafka": 60},
        "shares": [{**zeroes, "processor_slot": 0, "size_bytes": 2**39}],
    }
    assert as_dict(channel_message(closed_row("0-1-1", "idle")))["close"]["mutes"][0]["count"] == 2


def test_a_table_is_not_folded_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("x" * 300, 5), ("[red]y", 1000)])
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first.split(), second.split()) == (["NAME", "COUNT"], ["x" * 300, "5"])
    assert third.startswith("[red]y ")


def test_what_others_wrote_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "DETAIL"), [("a\x1b[2Jb", "one\ntwo\u202e")])
    print_fields([("name", "a\x07b\r")])
    assert capsys.readouterr().out.splitlines() == ["NAME       DETAIL", "a\\x1b[2Jb  one\\ntwo\\u202e", "name  a\\x07b\\r"]


@pytest.mark.parametrize(("encoding", "text"), [("utf-8", "ß"), ("ascii", "\\u00df"), ("latin-1", "\\u00df")])
def test_json_is_readable_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, text: str) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding=encoding))
    print_json({"name": "ß"})
    assert text in data.getvalue().decode(encoding)
    assert json.loads(data.getvalue()) == {"name": "ß"}


@pytest.fixture(scope="module")
def cli() -> Iterator[Cli]:
    with served() as cli:
        cli.plane.add(*(channel_row(f"0-1-{number}", mute_reason="größer", muted=["admin"]) for number in range(1, 4)))
        yield cli


@pytest.mark.slow
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_has_gone_ends_it_silently(cli: Cli, output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = run_cli("channels", "list", "--address", cli.address, "--output", output, stdout=writer)
    finally:
        os.close(writer)
    assert result == (141, "", "")


@pytest.mark.slow
def test_a_disk_that_is_full_is_told() -> None:
    with served() as cli, open("/dev/full", "w") as full:
        result = run_cli("status", "--address", cli.address, stdout=full)
    assert result == (1, "", "framegate: standard output cannot be written: No space left on device\n")


@pytest.mark.slow
def test_letters_that_the_terminal_lacks_are_escaped(cli: Cli) -> None:
    plain = {"PYTHONIOENCODING": "ascii"}
    code, text, errors = run_cli("channels", "describe", "0-1-2", "--address", cli.address, environment=plain)
    assert (code, "gr\\xf6\\xdfer" in text, errors) == (0, True, "")
    code, text, errors = run_cli("channels", "describe", "0-1-2", "--address", cli.address, "-o", "json", environment=plain)
    assert (code, json.loads(text)["mute_reason"], errors) == (0, "größer", "")
    code, _, errors = run_cli("limits", "get", "--listener", "größer", "--address", cli.address, environment=plain)
    assert (code, errors) == (3, "framegate: there is no listener 'gr\\xf6\\xdfer' (LISTENER_NOT_FOUND)\n")


@pytest.mark.slow
def test_a_narrow_terminal_wraps_lines_and_folds_no_cell(cli: Cli) -> None:
    ours, theirs = os.openpty()
    try:
        with open(theirs, "w") as terminal:
            code, _, errors = run_cli(
                "channels", "list", "--address", cli.address, stdout=terminal, environment={"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": "1"}
            )
        text = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    lines = text.splitlines()
    assert (code, errors, len(lines)) == (0, "", 4)
    assert all(len(line) > 80 for line in lines[1:])
    assert [line.split()[0] for line in lines[1:]] == ["0-1-1", "0-1-2", "0-1-3"]


@each_of(
    ("seconds", "text"),
    [(-5, "0s"), (0.9, "0s"), (12, "12s"), (60, "1m"), (65.5, "1m 5s"), (3605, "1h"), (3 * 86_400 + 7200 + 61, "3d 2h"), (86_400, "1d")],
)
def test_ages_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
