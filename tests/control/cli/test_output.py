"""Tables and JSON."""

import pytest

from control.cli.output import as_dict, print_fields, print_table, size_text, time_text, word
from control.gen.framegate.control.v1 import pool_service_pb2 as pool_pb2
from control.gen.framegate.control.v1.proxy_service_pb2 import Proxy
from control.service.convert import channel_message
from tests.fakes.plane import closed_row


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (100 << 20, "100 MiB"), (2**31 - 1, "2 GiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_are_written_as_people_read_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_words_and_times() -> None:
    assert (word("CAUSE_PEER_RESET", "CAUSE_"), word("CAUSE_UNSPECIFIED", "CAUSE_")) == ("peer_reset", "-")
    assert (time_text("2027-01-15T08:00:00.500Z"), time_text("2027-01-15T08:00:00Z"), time_text(None)) == (
        "2027-01-15 08:00:00 UTC",
        "2027-01-15 08:00:00 UTC",
        "-",
    )


def test_int64_is_a_number_however_deep_and_maps_stay() -> None:
    pool = pool_pb2.MemoryPool(size_bytes=2**40, shares=[pool_pb2.MemoryShare(size_bytes=2**39)])
    assert as_dict(pool) == {
        "size_bytes": 2**40,
        "usage_bytes": 0,
        "shares": [{"processor_slot": 0, "size_bytes": 2**39, "usage_bytes": 0}],
    }
    assert as_dict(Proxy(module_files={"a": "b"}, pid=7))["module_files"] == {"a": "b"}
    assert as_dict(channel_message(closed_row("0-1-1", "idle")))["close"]["mutes"][0]["count"] == 2


def test_a_table_is_not_folded_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "COUNT"), [("x" * 300, 5), ("[red]y", 1000)])
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first.split(), second.split()) == (["NAME", "COUNT"], ["x" * 300, "5"])
    assert third.startswith("[red]y ")


def test_fields_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("a", 1), ("long", "x")])
    assert capsys.readouterr().out == "a     1\nlong  x\n"
