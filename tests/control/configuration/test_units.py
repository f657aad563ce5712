import pytest

from framegate.control.configuration.units import first_of, format_about, format_instant_ns, parse_duration_ms, parse_instant_ns, parse_size

NINES = "9" * 5000


def test_a_size_is_bytes_or_a_number_with_a_unit() -> None:
    sizes = {"0": 0, "4096": 4096, "100MiB": 100 * 2**20, "64 KB": 64_000, "1.5GiB": 3 * 2**29, "2gib": 2**31, "1_000": 1000, "7B": 7}
    assert {text: parse_size(text) for text in sizes} == sizes


def test_a_size_that_nobody_wrote_is_rounded_down_and_small_ones_less() -> None:
    kib, mib = 2**10, 2**20
    sizes = {
        0: "0B",
        10 * kib - 1: "10239B",
        10 * kib + 1: "10KiB",
        1020 * kib: "1020KiB",
        10 * mib - 1: "10239KiB",
        10 * mib + 1: "10MiB",
        2**30: "1GiB",
    }
    assert {size: format_about(size) for size in sizes} == sizes


def test_an_instant_has_its_zone_or_is_a_time_from_now() -> None:
    instants = {
        "0": 0,
        "90m": 5_400_000_000_007,
        "1970-01-01T00:00:01Z": 1_000_000_000,
        "2026-12-31T23:59:00.25+02:00": 1_798_754_340_250_000_000,
        " 2026-12-31t21:59:00Z ": 1_798_754_340_000_000_000,
    }
    assert {text: parse_instant_ns(text, 7) for text in instants} == instants
    exact = (0, 1, 10**9, 1_798_761_599_999_999_999, 2**63 - 1)
    assert [parse_instant_ns(format_instant_ns(instant), 7) for instant in exact] == list(exact)


def test_what_is_no_size_time_or_instant_is_refused() -> None:
    sizes = ("", "MiB", "-1", "10 bytes", "1.5", "1e3", "0x10", "10MiBs", "8388608TiB", NINES, f"1.{NINES}GiB")
    times = ("", "10", "s", "-1s", "1.0001ms", "5 minutes", "1m2", "106751991168d", f"{NINES}d", f"1.{NINES}h")
    instants = ("", "tomorrow", "2026-12-31", "2026-12-31T23:59:00", "5", "-5m", "1969-12-31T00:00:00Z", "2300-01-01T00:00:00Z", "199999d")
    for parse, words, texts in (
        (parse_size, "not a ", sizes),
        (parse_duration_ms, "not a ", times),
        (lambda text: parse_instant_ns(text, 7), "not an instant", (*instants, f"{NINES}d")),
    ):
        for text in texts:
            with pytest.raises(ValueError, match=f"^{words}"):
                parse(text)


def test_of_many_names_the_first_are_shown_and_the_others_counted() -> None:
    assert [first_of(names, 2) for names in ([], ["a", "b"], ["a", "b", "c"])] == ["", "a, b", "a, b and 1 more"]
