"""What options may hold."""

import click
import pytest

from framegate.control.cli.kinds import ADDRESS, CHANNEL, DURATION, EXPIRY, JAVA_HEAP, LISTENER, MOMENT, SIZE
from tests.fakes.cases import each_of


def test_units_are_understood() -> None:
    assert (SIZE.convert("1MiB", None, None), SIZE.convert("17", None, None), SIZE.convert(5, None, None)) == (1 << 20, 17, 5)
    assert (DURATION.convert("1m30s", None, None), DURATION.convert(5, None, None)) == (90_000, 5)
    assert [JAVA_HEAP.convert(text, None, None) for text in ("1g", "512m", "1.5GiB", "600000k")] == ["1024m", "512m", "1536m", "585m"]
    assert CHANNEL.convert("0-1-42", None, None) == "0-1-42"
    assert [EXPIRY.convert(text, None, None) for text in ("10m", "1ms", "never", "0")] == [
        ("ttl", 600_000),
        ("ttl", 1),
        ("instant", 0),
        ("instant", 0),
    ]
    assert EXPIRY.convert("2030-01-31T12:00:00+01:00", None, None) == ("instant", 1_896_087_600 * 10**9)
    for text in ("unix:/run/a.sock", "unix:a.sock", "unix:///run/a.sock", "127.0.0.1:9", "[::1]:9", "localhost:9"):
        assert ADDRESS.convert(text, None, None) == text


@each_of(
    ("kind", "text"),
    [
        (SIZE, "much"),
        (DURATION, "30"),
        (MOMENT, "yesterday"),
        (MOMENT, "2027-01-15T08:00:00"),
        (MOMENT, ""),
        (CHANNEL, "42"),
        (CHANNEL, "64-1-1"),
        (ADDRESS, "/run/a.sock"),
        (ADDRESS, "host"),
        (JAVA_HEAP, "lots"),
        (JAVA_HEAP, "100m"),
        (EXPIRY, "soon"),
        (EXPIRY, "2030-01-31T12:00:00"),
        (EXPIRY, "-5m"),
        (EXPIRY, "9" * 30 + "d"),
        (MOMENT, "9" * 30 + "d"),
        (DURATION, "9" * 30 + "d"),
        (SIZE, "9" * 30 + "TiB"),
    ],
)
def test_what_they_do_not_understand_says_what_would_be_right(kind: click.ParamType[object], text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert text in caught.value.message


def test_a_name_is_not_empty() -> None:
    """As a variable of the shell that is not set makes it: it would mean all of them, or none."""
    assert LISTENER.convert("kafka", None, None) == "kafka"
    for text in ("", " "):
        with pytest.raises(click.BadParameter, match="is empty: write the name of a listener"):
            LISTENER.convert(text, None, None)


def test_moments_are_times_or_so_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    assert MOMENT.convert("10m", None, None) == 10**18 - 600 * 10**9
    assert MOMENT.convert("2001-09-09T01:46:40.000001Z", None, None) == 10**18 + 1000
    assert MOMENT.convert("2001-09-09T03:46:40+02:00", None, None) == 10**18
    assert MOMENT.convert(5, None, None) == 5
    assert MOMENT.convert("99999d", None, None) == 10**18 - 99999 * 86400 * 10**9, "from the beginning"
    assert MOMENT.convert("0001-01-01T00:00:00+14:00", None, None) < 0
