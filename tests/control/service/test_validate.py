"""What a request may say."""

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from control.errors import InvalidArgumentError
from control.gen.framegate.control.v1.channel_service_pb2 import ChannelIds, ChannelSelector
from control.gen.framegate.control.v1.pool_service_pb2 import MemoryPool
from control.service.validate import MAX_IDS, MAX_REASON, Violations, changed_fields, reason, required, selection


def fields(violations: Violations) -> list[str]:
    try:
        violations.check()
    except InvalidArgumentError as error:
        return [item.field for item in error.violations]
    return []


def test_nothing_wrong_is_no_error() -> None:
    Violations().check()


@pytest.mark.parametrize(("text", "needed", "good"), [
    ("", False, True), ("", True, False), ("  ", True, False), ("x" * MAX_REASON, True, True), ("x" * (MAX_REASON + 1), False, False),
    ("tab\t", False, False), ("Grüße", True, True),
])  # fmt: skip
def test_a_reason_is_one_line_of_bounded_length(text: str, needed: bool, good: bool) -> None:
    violations = Violations()
    reason(text, violations, needed=needed)
    assert fields(violations) == ([] if good else ["reason"])


def test_an_id_named_twice_counts_once() -> None:
    violations = Violations()
    numbers, listener = selection(ChannelSelector(channels=ChannelIds(ids=["0-1-2", "0-1-3", "0-1-2"])), violations)
    assert (len(numbers), listener, fields(violations)) == (2, None, [])


def test_the_number_of_ids_is_bounded() -> None:
    violations = Violations()
    selection(ChannelSelector(channels=ChannelIds(ids=["0-1-2"] * (MAX_IDS + 1))), violations)
    assert fields(violations) == ["selector.channels.ids"]


def test_a_required_text_must_not_be_empty() -> None:
    violations = Violations()
    assert required("x", "a", violations) == "x"
    required("", "b", violations)
    assert fields(violations) == ["b"]


@pytest.mark.parametrize(("pool", "paths", "changed", "wrong"), [
    (MemoryPool(size_bytes=0), [], {"size_bytes"}, []),
    (MemoryPool(), [], set(), ["memory_pool"]),
    (MemoryPool(size_bytes=1), ["*"], {"size_bytes"}, []),
    (MemoryPool(size_bytes=1), ["usage_bytes"], set(), ["update_mask"]),
    (MemoryPool(), ["size_bytes"], {"size_bytes"}, ["memory_pool.size_bytes"]),
])  # fmt: skip
def test_a_mask_says_what_changes(pool: MemoryPool, paths: list[str], changed: set[str], wrong: list[str]) -> None:
    violations = Violations()
    assert changed_fields(pool, FieldMask(paths=paths), {"size_bytes"}, "memory_pool", violations) == changed
    assert fields(violations) == wrong
