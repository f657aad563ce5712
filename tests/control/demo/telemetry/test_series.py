"""Series by way of a collector, and by a scrape."""

from control.demo.telemetry.series import OTHER_BY_NATURE, compare

NODES = {"127.0.0.1:1234": "demo"}
OTLP = {"__name__": "framegate_io_bytes_total", "job": "framegate", "instance": "demo", "otel_scope_name": "framegate", "framegate_side": "upstream"}
SCRAPED = {"__name__": "framegate_io_bytes_total", "job": "scrape", "instance": "127.0.0.1:1234", "framegate_side": "upstream"}


def test_labels_that_differ_by_nature_make_no_difference() -> None:
    compared = compare([OTLP], [SCRAPED], NODES)
    assert (compared.both, compared.equal) == (1, True)
    assert "framegate_side" not in OTHER_BY_NATURE


def test_a_series_by_one_way_only_is_named() -> None:
    compared = compare([OTLP], [{**SCRAPED, "framegate_side": "downstream"}], NODES)
    assert compared.only_otlp == ('demo: framegate_io_bytes_total{framegate_side="upstream"}',)
    assert compared.only_scrape == ('demo: framegate_io_bytes_total{framegate_side="downstream"}',)
    assert not compared.equal


def test_the_same_series_of_another_node_is_another() -> None:
    assert not compare([{**OTLP, "instance": "other"}], [SCRAPED], NODES).equal


def test_a_bound_is_a_number() -> None:
    bucket = {"__name__": "x_seconds_bucket"}
    assert compare([{**bucket, "le": "1"}, {**bucket, "le": "+Inf"}], [{**bucket, "le": "1.0"}, {**bucket, "le": "+Inf"}], {}).equal
    assert not compare([{**bucket, "le": "1"}], [{**bucket, "le": "1.5"}], {}).equal


def test_what_tells_of_the_way_itself_is_left_out() -> None:
    assert compare([{"__name__": "target_info"}], [{"__name__": "up"}, {"__name__": "scrape_duration_seconds"}], {}).both == 0
    assert compare([{"__name__": "target_info"}], [{"__name__": "up"}], {}).equal
