"""framegate.proxy.kafka.addresses: only hosts and ports differ, whatever the version; nothing real is left in plain view."""

import contextlib
import dataclasses
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.addresses import HEAD, NONE, TAIL, AddressRewriter, AdvertisedBrokers, SeenBroker, carries_addresses, lacks_endpoints
from framegate.proxy.kafka.program import compile_program
from framegate.proxy.kafka.schema import api, apis
from framegate.proxy.kafka.walker import Walker
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import HOST, MUTATIONS, answer_body, decoded, fields, mutated, sample, schema, told

TABLE = {**{node: (f"broker-{node}.example.org", 9100 + node) for node in range(8)}, 3: ("h" * 200, 1), 1 << 30: ("far", 65535)}
BOOTSTRAP = ("kafka.example.org", 9092)
ADVERTISED = AdvertisedBrokers(*BOOTSTRAP, TABLE)
EVERY = [(known.key, version) for known in apis() for version in range(known.least, known.most + 1)]
VERSIONS = [item for item in EVERY if carries_addresses(*item) != NONE]
SEEDS = st.integers(0, 1 << 32)


def address(node: int) -> tuple[str, int]:
    return TABLE.get(node, BOOTSTRAP)


def rewritten(key: int, version: int, body: bytes, advertised: AdvertisedBrokers = ADVERTISED) -> bytes | None:
    rewriter = AddressRewriter(advertised)
    pieces = rewriter.rewrite(key, version, b"##" + body + b"#", 2, 2 + len(body))
    if pieces is None:
        assert rewriter.change == 0
        return None
    out = b"".join(pieces)
    assert rewriter.change == len(out) - len(body)
    return out


def entity(key: int, version: int, **values: Any) -> Any:
    """An answer with only these fields, and others of no meaning."""
    return dataclasses.replace(sample(schema(key, version, True), random.Random(1), 0), **values)


def element(key: int, version: int, array: str, **values: Any) -> Any:
    kind = next(inner for name, _, inner, *_ in fields(schema(key, version, True)) if name == array)
    return kind(**values)


def test_which_answers_carry_addresses() -> None:
    named = {HEAD: [3, 10, 60], TAIL: [0, 1, 78, 79]}
    for where, keys in named.items():
        assert sorted({key for key, version in VERSIONS if carries_addresses(key, version) == where}) == keys
    assert [carries_addresses(0, version) for version in (9, 10)] == [NONE, TAIL]
    assert [carries_addresses(1, version) for version in (15, 16)] == [NONE, TAIL]
    assert carries_addresses(-1, 0) == carries_addresses(2, 0) == carries_addresses(32767, 0) == NONE


def test_every_answer_with_a_host_and_a_port_is_rewritten() -> None:
    """By kio's schemas: no other answer that framegate understands has both beside an id of a broker."""

    def has_address(kind: type) -> bool:
        found = fields(kind)
        return {"host", "port"} <= {name for name, *_ in found} or any(has_address(inner) for _, primitive, inner, *_ in found if primitive is None)

    # StreamsGroupDescribe and StreamsGroupHeartbeat name endpoints of applications, which are clients
    assert [item for item in EVERY if item[0] not in (88, 89) and has_address(load_response_schema(*item))] == VERSIONS


@pytest.mark.slow
@given(SEEDS)
def test_only_hosts_and_ports_differ(seed: int) -> None:
    rng = random.Random(seed)
    for key, version in VERSIONS:
        answer = sample(schema(key, version, True), rng)
        body, expected = answer_body(answer), answer_body(told(answer, address))
        new = rewritten(key, version, body)
        assert (body if new is None else new) == expected, (key, version)
        assert HOST.encode() not in expected
        assert decoded(expected, key, version) == told(answer, address)
        assert rewritten(key, version, expected) is None, "what is right already is left alone"


@pytest.mark.slow
def test_nothing_changes_if_the_brokers_advertise_what_clients_are_told() -> None:
    for key, version in VERSIONS:
        answer = told(sample(schema(key, version, True), random.Random(version)), lambda node: ("same", 1))
        assert rewritten(key, version, answer_body(answer), AdvertisedBrokers("same", 1, {})) is None, (key, version)


@each_of("version", range(7))
def test_no_node_stays_no_node(version: int) -> None:
    if version < 4:
        answer = entity(10, version, node_id=-1, host="", port=-1)
    else:
        kind = next(inner for name, _, inner, *_ in fields(schema(10, version, True)) if name == "coordinators")
        answer = entity(10, version, coordinators=(dataclasses.replace(sample(kind, random.Random(1)), node_id=-1, host="", port=-1),))
    assert rewritten(10, version, answer_body(answer)) is None


def test_a_broker_without_an_entry_gets_the_bootstrap_address() -> None:
    answer = entity(
        3, 0, brokers=(element(3, 0, "brokers", node_id=99, host=HOST, port=9092), element(3, 0, "brokers", node_id=1, host=HOST, port=9092))
    )
    new = decoded(rewritten(3, 0, answer_body(answer)) or b"", 3, 0)
    assert [(broker.host, broker.port) for broker in new.brokers] == [BOOTSTRAP, TABLE[1]]


def test_an_address_is_gained_for_a_broker_for_which_the_bootstraps_was_told() -> None:
    before = AdvertisedBrokers("boot", 1, {1: ("a", 2)})
    after = AdvertisedBrokers("boot", 1, {1: ("a", 2), 2: ("b", 3)})
    assert not after.gains(before), "nobody asked"
    for node, gains in ((1, False), (-1, False), (3, False), (2, True)):
        before.encoded(node, True)
        assert (after.gains(before), before.gains(before)) == (gains, False), node


@pytest.mark.slow
def test_the_first_part_of_an_answer_is_enough_if_it_has_all_addresses() -> None:
    for key, version in VERSIONS:
        if carries_addresses(key, version) == HEAD:
            body = answer_body(sample(schema(key, version, True), random.Random(version)))
            whole, refused = rewritten(key, version, body), 0
            rewriter = AddressRewriter(ADVERTISED)
            for end in range(len(body) + 1):
                try:
                    pieces = rewriter.rewrite(key, version, body, 0, end, len(body))
                except KafkaFormatError:
                    refused = end
                else:
                    out = body[:end] if pieces is None else b"".join(pieces)
                    assert out + body[end:] == (whole or body)
                    assert rewriter.change == len(whole or body) - len(body)
                    assert end == refused + 1 or refused < end, "more is not worse"


def test_an_address_beyond_the_first_part_is_refused_with_a_cause() -> None:
    body = answer_body(entity(3, 1, brokers=tuple(element(3, 1, "brokers", node_id=1, host=HOST, port=1, rack=None) for _ in range(9))))
    with pytest.raises(KafkaFormatError, match="addresses beyond the first 40 bytes"):
        AddressRewriter(ADVERTISED).rewrite(3, 1, body, 0, 40, len(body))


@each_of(("key", "version"), [(3, 0), (3, 1), (3, 8), (3, 13), (60, 0), (60, 1), (60, 2)])
def test_the_list_of_brokers_is_reported_once(key: int, version: int) -> None:
    racks = {"rack": "b"} if (key, version) != (3, 0) else {}
    name = "node_id" if key == 3 else "broker_id"

    def answer(fenced: bool, **others: Any) -> bytes:
        extra = {"is_fenced": fenced} if (key, version) == (60, 2) else {}
        listed = [element(key, version, "brokers", **{name: node}, host=f"h{node}", port=9, **racks, **extra) for node in (1, 200)]
        return answer_body(entity(key, version, brokers=tuple(listed), **others))

    rewriter = AddressRewriter(ADVERTISED)
    kind = {"endpoint_type": 1} if key == 60 and version else {}
    body = answer(False, **kind)
    rewriter.rewrite(key, version, body, 0, len(body))
    assert rewriter.brokers == [SeenBroker(node, f"h{node}", 9, racks.get("rack")) for node in (1, 200)]
    rewriter.rewrite(key, version, body, 0, len(body))
    assert rewriter.brokers is None
    if (key, version) == (60, 2):
        body = answer(True, **kind)
        rewriter.rewrite(key, version, body, 0, len(body))
        assert rewriter.brokers == [], "a fenced broker serves no client"
    if kind:
        body = answer(False, endpoint_type=2)  # controllers
        assert AddressRewriter(ADVERTISED).rewrite(key, version, body, 0, len(body))
        rewriter.rewrite(key, version, body, 0, len(body))
        assert rewriter.brokers is None


def test_other_answers_report_no_brokers() -> None:
    rewriter = AddressRewriter(ADVERTISED)
    body = answer_body(entity(10, 0, node_id=1, host="h", port=1))
    assert rewriter.rewrite(10, 0, body, 0, len(body))
    assert rewriter.brokers is None


USUAL = [item for item in VERSIONS if item[0] in (0, 1)]


def usual(
    key: int, version: int, rng: random.Random, topics: int = 2, partitions: int = 2, name: str = "orders", records: int | None = 1000
) -> bytes:
    """The body of an answer without errors and tagged fields."""
    plain = (
        {"record_errors": (), "error_message": None} if key == 0 else {"aborted_transactions": (), "records": records and rng.randbytes(records - 1)}
    )
    inner = "partition_responses" if key == 0 else "partitions"
    topic = next(made for field, _, made, *_ in fields(schema(key, version, True)) if field == "responses")
    kind = next(made for field, _, made, *_ in fields(topic) if field == inner)
    defaults = {name: default for name, _, _, _, _, default in fields(kind) if name in ("current_leader", "diverging_epoch", "snapshot_id")}
    parts = tuple(dataclasses.replace(sample(kind, rng, 0), **defaults, **plain) for _ in range(partitions))
    named = {} if key or version >= 13 else {"name": name}
    listed = tuple(dataclasses.replace(sample(topic, rng, 0), **{inner: parts}, **named) for _ in range(topics))
    return answer_body(entity(key, version, responses=listed, node_endpoints=()))


def lacks(key: int, version: int, body: bytes) -> bool:
    """Whether it is found to lack endpoints, amid other bytes; an answer of which less is there is never."""
    assert not lacks_endpoints(key, version, b"##" + body[:-1], 2, 2 + len(body))
    return lacks_endpoints(key, version, b"##" + body + b"\0" * 40, 2, 2 + len(body))


def test_usual_answers_are_found_to_lack_endpoints_without_the_walker() -> None:
    rng = random.Random(5)
    for key, version in USUAL:
        for counts in ((0, 1), (1, 0), (1, 1), (3, 2), (126, 1), (1, 126)):
            assert lacks(key, version, usual(key, version, rng, *counts)), (key, version, counts)
        for counts in ((127, 0), (1, 127)):
            assert not lacks(key, version, usual(key, version, rng, *counts)), (key, version, counts)
    for size, found in ((0, True), (1, True), (126, True), (127, False)):
        assert lacks(0, 12, usual(0, 12, rng, name="n" * size)) is found
    for records in (None, 1, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21):
        for partitions in (1, 2):
            assert lacks(1, 18, usual(1, 18, rng, 1, partitions, records=records)) is (records != 1 << 21), (records, partitions)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_no_answer_that_the_walker_refuses_or_changes_is_found_to_lack_endpoints() -> None:
    """Usual and random answers, and both with faults. FRAMEGATE_TEST_MUTATIONS: how many."""
    rng = random.Random(12)
    rewriter = AddressRewriter(ADVERTISED)
    tails = [item for item in VERSIONS if carries_addresses(*item) == TAIL]
    bodies = [(key, version, usual(key, version, rng, *rng.choices(range(4), k=2), records=20)) for key, version in USUAL for _ in range(9)]
    bodies += [(key, version, answer_body(sample(schema(key, version, True), rng, 2))) for key, version in tails for _ in range(5)]
    found = 0
    for turn in range(MUTATIONS):
        key, version, body = rng.choice(bodies)
        body = mutated(body, rng) if turn % 8 else body
        if lacks(key, version, body):
            found += 1
            assert rewriter.rewrite(key, version, body, 0, len(body)) is None, (key, version, body.hex())
            assert not len(rewriter._walker.marks), (key, version, body.hex())
    assert found > MUTATIONS / 20


def test_a_usual_answer_with_any_change_of_a_byte_is_judged_as_by_the_walker() -> None:
    rewriter = AddressRewriter(ADVERTISED)
    for item in USUAL:
        for topics, partitions in ((1, 1), (2, 2)):
            usual_one = usual(*item, random.Random(1), topics, partitions, records=5)
            for at, value in itertools.product(range(4, len(usual_one)), (0, 1, 2, 3, 128, 255)):
                body = usual_one[:at] + bytes((value,)) + usual_one[at + 1 :]
                if lacks(*item, body):
                    assert rewriter.rewrite(*item, body, 0, len(body)) is None, (item, topics, at, value)


@each_of(("key", "version"), [(3, -1), (3, 14), (0, 2), (4, 0), (55, 2)])
def test_an_answer_of_a_version_that_is_not_understood_is_refused(key: int, version: int) -> None:
    with pytest.raises(KafkaFormatError, match=f"version {version} of API {key}"):
        AddressRewriter(ADVERTISED).rewrite(key, version, bytes(100), 0, 100)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 105, 106, 107, 108, 109, 110, 111, 16365, 16366, 16367, 16368, 16369])
def test_the_size_of_the_tagged_field_has_as_many_bytes_as_it_needs(size: int) -> None:
    """Endpoints that grow or shrink over 127 and 16,383 bytes."""
    for key, version in ((0, 10), (0, 13), (1, 16), (1, 18)):
        ends = tuple(element(key, version, "node_endpoints", node_id=node, host="r" * size, port=1, rack=None) for node in (3, 1))
        answer = entity(key, version, node_endpoints=ends)
        assert rewritten(key, version, answer_body(answer)) == (answer_body(told(answer, address)) if size else None)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_mutated_answers_are_refused_or_have_no_real_address() -> None:
    """FRAMEGATE_TEST_MUTATIONS: how many."""
    rng = random.Random(11)
    rewriter = AddressRewriter(ADVERTISED)
    bodies = [(key, version, answer_body(sample(schema(key, version, True), rng, 2))) for key, version in VERSIONS for _ in range(3)]
    walker, whole = Walker(), {item: compile_program(api(item[0]), item[1], answer=True, marks={}) for item in VERSIONS}  # type: ignore[arg-type]
    refused = read = 0
    for _ in range(MUTATIONS):
        key, version, body = rng.choice(bodies)
        body = mutated(body, rng)
        try:
            pieces = rewriter.rewrite(key, version, body, 0, len(body))
        except KafkaFormatError:
            refused += 1
            continue
        new = body if pieces is None else b"".join(pieces)
        answer = None
        with contextlib.suppress(Exception):  # of kio, for texts that are no UTF-8 and times that are too long; it would die of a wrong length
            walker.walk(whole[key, version], new, 0, len(new))
            answer = decoded(new, key, version)
            read += 1
        assert answer is None or told(answer, address) == answer, (key, version, body.hex())
    assert read > MUTATIONS / 10
    assert 0.1 < refused / MUTATIONS < 0.9
