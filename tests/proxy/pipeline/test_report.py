import json

from framegate.proxy.pipeline.report import distance, streams_of


def test_lag_is_what_no_offset_covers() -> None:
    assert distance({"a": 10, "gone": 5}, {"a": 25, "new": 7}) == 22


def test_offsets_of_progress_are_an_object_or_its_text() -> None:
    offset = {"streams": {"a": 1}, "version": 1}
    assert streams_of(offset) == streams_of(json.dumps(offset)) == {"a": 1}
    assert streams_of(None) == {}
    assert streams_of({"nodes": {"n": {"streams": {"a": 1}}, "m": {"known": [1, 2]}}, "version": 3}) == {"n/a": 1}
