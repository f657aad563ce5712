"""What ``framegate tap replay`` says of two answers."""

import array
import hashlib
import struct

import pytest

from framegate.control.cli.tap_comparison import Answer, Report, percentile, result_of
from tests.fakes.captured import answered

CALL = 18 << 16
PRODUCE = 3  # version of a call of Produce, whose error code is in a partition


def produced(code: int, offset: int = 5) -> bytes:
    return struct.pack(">iih1siihqqi", 7, 1, 1, b"t", 1, 0, code, offset, -1, 0)


def answer(body: bytes, fault: str = "", *, size: int | None = None, call: int | None = None) -> Answer:
    return Answer(len(body) if size is None else size, body, fault, call, None)


@pytest.mark.parametrize(
    ("captured", "body", "result"),
    [
        (answer(b"same"), b"same", "equal"),
        (answer(b"same"), b"else", "content"),
        (answer(b"same"), b"longer", "size"),
        (answer(hashlib.blake2b(b"same", digest_size=16).digest(), "hash_only", size=4), b"same", "equal"),
        (answer(bytes(16), "hash_only", size=4), b"same", "content"),
        (answer(bytes(16), "hash_only", size=5), b"same", "size"),
        (answer(b"sa", "cut", size=4), b"same", "same_size"),
        (answer(b"so", "cut", size=4), b"same", "content"),
        (answer(b"sa", "cut", size=5), b"same", "size"),
        (answer(b"", "lengths_only", size=4), b"same", "same_size"),
        (answer(b"\0\0me", "redacted"), b"same", "same_size"),
        (answer(answered(1), call=CALL), answered(1, 35), "error_code"),
        (answer(answered(1), call=CALL), answered(1, 35, 9), "error_code"),
        (answer(answered(1, 35)[:6], "cut", size=16, call=CALL), answered(1), "error_code"),
        (answer(answered(1, 35)[:5], "cut", size=16, call=CALL), answered(1), "same_size"),
        (answer(answered(1, 35), "redacted", call=CALL), answered(1), "same_size"),
        (answer(answered(1, 35), call=CALL), answered(1, 35, 2), "size"),
        (answer(produced(0), call=PRODUCE), produced(6), "error_code"),
        (answer(produced(0), call=PRODUCE), produced(0, 6), "content"),
        (answer(produced(0), call=PRODUCE), b"no answer of Produce", "size"),
        (answer(answered(1), call=999 << 16), answered(1, 35), "content"),
    ],
)
def test_the_first_difference_counts(captured: Answer, body: bytes, result: str) -> None:
    assert result_of(captured, body)[0] == result


@pytest.mark.parametrize(("count", "median", "high"), [(1, 0, 0), (2, 0, 1), (3, 1, 2), (100, 49, 98), (101, 50, 99)])
def test_a_percentile_is_one_of_the_values(count: int, median: int, high: int) -> None:
    values = array.array("i", reversed(range(count)))
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (median, high)
    assert percentile(array.array("i"), 0.5) is None


def test_the_report_has_a_row_for_each_api_and_a_line_for_each_other_count(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.connections = 2
    for api, code in ((18, 35), (18, 0), (None, 0)):
        tally = report.of(api)
        tally.requests += 1
        tally.compare(answer(answered(1), call=CALL), answered(1, code), 2_000, 3_000)
    report.of(3).requests = 1
    report.of(3).unanswered = 1
    report.of(1)  # nothing happened
    report.not_sent["cut"] = 2
    report.failures["it is full"] = 1
    report.late_us = 1_260
    report.print("table")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["-", "1", "1", *["0"] * 6, "2.000", "3.000", "2.000", "3.000"],
        ["Metadata", "1", *["0"] * 5, "1", "0", "-", "-", "-", "-"],
        ["ApiVersions", "2", "1", "0", "1", "0", "0", "0", "0", "2.000", "3.000", "2.000", "3.000"],
    ]
    assert lines[4:] == [
        "ApiVersions: error code 0 captured, 35 now: 1 answer",
        "not sent: 2 requests: cut",
        "failed: 1 connection: it is full",
        "4 requests on 2 connections, at most 1.3 ms late; there are differences",
    ]


def test_a_report_of_nothing_does_not_say_that_answers_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    Report().print("table")
    assert capsys.readouterr().out.splitlines()[-1] == "0 requests on 0 connections, at most 0.0 ms late; nothing was compared"
