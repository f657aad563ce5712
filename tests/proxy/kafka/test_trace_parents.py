"""The trace contexts in Produce requests: found, validated, bounded, and never an error."""

import random
import time

from framegate.proxy.kafka import trace_parents
from framegate.proxy.kafka.trace_parents import MAX_BATCHES, MAX_HEADERS, MAX_PARENTS, MAX_RECORDS, MAX_UNPACKED, produced
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import MUTATIONS
from tests.fakes.record_batches import batch, context, produce, record

NAME = b"traceparent"


def parents(*headers: tuple[bytes, bytes | None]) -> list[str]:
    return produced(produce(("orders", [batch(record(headers))]))[4:]).parents


def of(number: int) -> bytes:
    """A record with a context."""
    return record([(NAME, context(number))])


def numbers(request: bytes) -> list[int]:
    """The traces that are found in a frame."""
    return [int(each.split("-")[1], 16) for each in produced(request[4:]).parents]


def test_the_context_is_found_in_every_version_packed_or_not() -> None:
    wrong = []
    for version in range(2, 14):
        for codec in (0, 1):
            headers = [(b"other", b"x"), (NAME, context(7)), (b"tracestate", None)]
            found = produced(produce(("orders", [batch(record(), record(headers, value=None, key=b"k"), codec=codec)]), version=version)[4:])
            named = "" if version >= 13 else "orders"
            if (found.topic, found.partition, found.records, found.parents) != (named, 2, 2, [context(7).decode()]):
                wrong.append((version, codec, vars(found) if hasattr(found, "__dict__") else found.parents))
    assert wrong == []


@each_of(
    ("value", "good"),
    [
        (context(7), True),
        (context(7, flags=0), True),
        (b"cc" + context(7)[2:], True),
        (b"cc" + context(7)[2:] + b"-later", True),
        (b"ff" + context(7)[2:], False),
        (context(7) + b"-later", False),
        (b"cc" + context(7)[2:] + b"later", False),
        (context(7)[:-1], False),
        (context(0), False),
        (context(7, 0), False),
        (context(7).replace(b"7-", b"G-"), False),
        (context(0xABC).upper(), False),
        (context(7).replace(b"-", b"_"), False),
        (b"", False),
        (None, False),
        (b"cc" + context(7)[2:] + b"-" + b"x" * 600, False),
    ],
)
def test_a_context_is_as_the_recommendation_says(value: bytes | None, good: bool) -> None:
    assert parents((NAME, value)) == ([value[:55].decode()] if good and value is not None else [])


def test_only_the_header_of_that_name_counts_and_each_context_once() -> None:
    assert parents((b"Traceparent", context(1)), (b"traceparent2", context(2)), (b"b3", context(3))) == []
    assert numbers(produce(("t", [batch(of(3), of(4), of(3), record())]))) == [3, 4]


def test_several_topics_and_partitions_are_looked_through_and_have_no_name() -> None:
    request = produce(("a", [batch(of(1)), batch(of(2), codec=2), batch(of(3))]), ("b", [b"", batch(of(4), magic=1), batch(of(5))]))
    found = produced(request[4:])
    assert (numbers(request), found.topic, found.partition, found.records) == ([1, 3, 5], "", -1, -1)


def test_a_damaged_batch_does_not_hide_the_next_one() -> None:
    packed = bytearray(batch(of(1), codec=1))
    packed[80] ^= 0xFF
    assert numbers(produce(("t", [bytes(packed), batch(record(header_count=1 << 30)), batch(of(2))]))) == [2]


@each_of(
    ("request_", "expected"),
    [
        (produce(("t", [batch(of(number)) for number in range(1, 2 * MAX_BATCHES)])), MAX_PARENTS),
        (produce(("t", [batch(record())] * (MAX_BATCHES - 2) + [batch(of(1))] * 2)), 1),
        (produce(("t", [batch(record())] * (MAX_BATCHES - 1) + [batch(of(1))])), 0),
        (produce(("t", [batch(*[record()] * (MAX_RECORDS - 1), of(1))])), 1),
        (produce(("t", [batch(*[record()] * MAX_RECORDS, of(1))])), 0),
        (produce(("t", [batch(record([(b"h", b"")] * (MAX_HEADERS - 1) + [(NAME, context(1))]))])), 1),
        (produce(("t", [batch(record([(b"h", b"")] * MAX_HEADERS + [(NAME, context(1))]))])), 0),
        (produce(("t", [batch(record(value=b"x" * (MAX_UNPACKED - 200)), of(1), codec=1)])), 1),
        (produce(("t", [batch(record(value=b"x" * MAX_UNPACKED), of(1), codec=1)])), 0),
    ],
)
def test_the_work_is_bounded(request_: bytes, expected: int) -> None:
    assert len(numbers(request_)) == expected


def test_counts_that_cannot_be_cost_nothing() -> None:
    """Counts of lists, records and headers, and sizes, are whatever the sender writes."""
    huge = b"\xff\xff\xff\xff\x0f"
    head = produce()[4:-2]
    took = {}
    for name, request in {
        "topics": head + huge + b"\x01\x01\x00" * 20_000,
        "partitions": head + b"\x02\x02t" + huge + b"\0" * 60_000,
        "tags": head[:11] + huge + b"\0" * 60_000,
        "records": produce(("t", [batch(b"\0" * 60_000, count=(1 << 31) - 1)]))[4:],
        "headers": produce(("t", [batch(record(header_count=(1 << 31) - 1) + b"\0" * 60_000)]))[4:],
        "bomb": produce(("t", [batch(b"\0" * 50_000_000, codec=1)]))[4:],
    }.items():
        began = time.perf_counter()
        assert produced(request).parents == []
        took[name] = time.perf_counter() - began
    assert max(took.values()) < 0.1, took


def test_a_request_that_is_cut_short_anywhere_is_read_as_far_as_it_goes() -> None:
    request = produce(("orders", [batch(of(1), of(2))]))[4:]
    counts = [len(produced(request[:size]).parents) for size in range(len(request) + 1)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 2)


def test_random_damage_never_raises() -> None:
    rng = random.Random(28)
    seeds = [produce(("orders", [batch(of(1), of(2), codec=codec)] * 3), version=version)[4:] for version in (2, 8, 9, 13) for codec in (0, 1)]
    for _ in range(MUTATIONS):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        found = produced(bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.3 else data))
        assert len(found.parents) <= MAX_PARENTS
        assert all(trace_parents._CONTEXT.fullmatch(parent.encode()) for parent in found.parents)
    for size in range(200):
        produced(rng.randbytes(size))
