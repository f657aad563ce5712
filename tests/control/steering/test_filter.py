"""framegate.control.steering.filter: which channels a filter chooses, and what it says of text that is none."""

import re

import pytest

from framegate.control.errors import InvalidArgumentError
from framegate.control.steering.filter import FIELDS, MAX_COMPARISONS, MAX_LENGTH, Filter, Look, Rates
from tests.fakes.rows import OPENED_NS, open_row

MIB = 1 << 20
NOW_NS = OPENED_NS + 10 * 10**9
ROW = {
    "listener": "kafka", "peer": "10.1.2.3:51000", "principal": "CN=a b,O=\"x\"", "client_id": "billing-7", "software": "librdkafka",
    "software_version": "2.3", "upstream": "u", "endpoint": "10.1.0.1:9092", "state": "open", "muted": ["memory"], "muted_upstream": ["peer"],
    "muted_ns": NOW_NS - 2 * 10**9, "muted_upstream_ns": NOW_NS - 5 * 10**9, "in_flight": 3, "oldest_ns": NOW_NS - 10**9,
    "last_active_ns": NOW_NS - 10**8, "leased": MIB, "unsent": {"request": 1, "response": 2}, "bytes": {"request": 300, "response": 200},
    "frames": {"request": 30, "response": 20}, "limit_rule": "etl",
}  # fmt: skip
RATES = Rates(1000.0, 24.0, 2.0, 1.0)
HOLDS = """
listener=kafka | listener=k* | listener!=plain | listener!=k | listener=k?fka | address=10.1.2.3 | address=10.1.0.0/16 | address!=10.2.0.0/16
address=10.1.* | principal="CN=a b,O=\\"x\\"" | principal=CN* | client_id=billing-* | software="librdkafka 2.*" | upstream=u | endpoint=10.1.0.1:*
state=open | limit_rule=e* | waiting=memory | waiting=peer | waiting!=throttle | waiting=*e* | waiting!=none | waiting_time=5s | waiting_time>4999ms
age=10s | age>=10s | age<=10s | age>9999ms | age<10001ms | idle=100ms | in_flight=3 | in_flight>2 | in_flight<4 | in_flight!=4 | oldest=1s
held=1MiB | held>=1048576 | held>1048575 | held<1048577 | unsent=3 | request_bytes=300 | response_bytes=200B | request_frames=30 | response_frames=20
bytes_rate=1024 | bytes_rate>=1KiB | request_bytes_rate=1KB | response_bytes_rate<25 | frames_rate=3 | request_frames_rate=2 | response_frames_rate=1
listener=kafka client_id=billing-* held>=1MiB waiting=memory |   held>0   age>1s
"""
FAILS = """
listener=kafk | listener=Kafka | listener!=kafka | address=10.1.2.4 | address=10.1.2.4/31 address=10.2.0.0/16 | address!=10.1.0.0/16 | address=::/0
address=10.1.2.3:51000 | principal="" | client_id=billing | waiting=none | waiting!=memory | age>10s | age<10s | age!=10s | in_flight>3 | in_flight<3
limit_rule="" | held>1MiB | held<1MiB | held!=1MiB | bytes_rate>1024 | listener=kafka held>1MiB | oldest>1s | idle=0
"""
WRONG = {
    "x=1": r"character 1: there is no field x; the fields are listener, address, .*",
    "listener": r"character 1: write NAME=VALUE, also with .*",
    "listener=": r"character 1: write NAME=VALUE.*",
    "listener = a": r"character 1: write NAME=VALUE.*",
    "held>1MiB AND age>1s": r"character 11: write NAME=VALUE.*",
    "  held>1 or=2": r"character 10: there is no field or;.*",
    'client_id="a': r"character 1: write.*",
    'client_id="a"b': r"character 1: write.*",
    "listener>a": r"character 1: listener takes the operators = and !=, not >",
    "waiting>=a": r"character 1: waiting takes the operators = and !=, not >=",
    "address=10.1.2.3/31": r"character 1: address: '10.1.2.3/31' is not a network: 10.1.2.3/31 has host bits set",
    "address<1.0.0.0": r"character 1: address takes .*",
    "age>5": r"character 1: age: '5' is not a time: .*",
    "held>many": r"character 1: held: 'many' is not a size: .*",
    "in_flight=-1": r"character 1: in_flight: '-1' is not a number",
    "in_flight=" + "9" * 19: r"character 1: in_flight: '9+' is not a number",
    "a" * (MAX_LENGTH + 1): rf"must have at most {MAX_LENGTH} characters, not {MAX_LENGTH + 1}",
    "age>1s " * MAX_COMPARISONS + "idle>1s": rf"character {7 * MAX_COMPARISONS + 1}: a filter has at most {MAX_COMPARISONS} comparisons",
}


def looked(**changes: object) -> Look:
    return Look(open_row(**{**ROW, **changes}), NOW_NS, RATES)


def cases(table: str) -> list[str]:
    return [text for line in table.strip().splitlines() for text in line.split(" | ")]


def test_each_comparison_holds_or_not_and_all_must_hold() -> None:
    look = looked()
    wrong = [text for text in cases(HOLDS) if not Filter(text).matches(look)] + [text for text in cases(FAILS) if Filter(text).matches(look)]
    assert wrong == []
    assert {item.name for text in cases(HOLDS) for item in Filter(text).comparisons} == FIELDS.keys(), "each field is in the table"
    assert not [name for name, field in FIELDS.items() if field.rated != name.endswith("_rate")]


def test_what_is_absent_is_empty_zero_or_none() -> None:
    bare = looked(principal=None, endpoint=None, muted=[], muted_upstream=[], muted_ns=0, muted_upstream_ns=0, oldest_ns=0, client_id="")
    for text in ('principal="" endpoint="" client_id=""', "waiting=none waiting_time=0 oldest=0", "waiting!=memory", "client_id!=?*"):
        assert Filter(text).matches(bare), text
    assert Filter("bytes_rate=0").matches(bare._replace(rates=None))


@pytest.mark.parametrize(
    ("peer", "inside", "outside"),
    [
        ("[2001:db8::1]:9", "2001:db8::/32", "10.0.0.0/8"),
        ("[::ffff:10.0.0.1]:9", "10.0.0.0/8", "::/0"),
        ("[fe80::1%eth0]:9", "fe80::/10", "fe80::2"),
        ("unix:/run/x", "unix:*", "0.0.0.0/0"),
    ],
)
def test_an_address_is_compared_without_port_and_zone(peer: str, inside: str, outside: str) -> None:
    look = looked(peer=peer)
    assert [Filter(f"address={text}").matches(look) for text in (inside, outside)] == [True, False]


def test_an_error_says_where_and_what_is_allowed() -> None:
    wrong = {}
    for text, expected in WRONG.items():
        with pytest.raises(InvalidArgumentError) as caught:
            Filter(text, "its.filter")
        (violation,) = caught.value.violations
        if violation.field != "its.filter" or not re.fullmatch(expected, violation.description):
            wrong[text] = violation.description
    assert wrong == {}
    assert Filter("age>1s " * MAX_COMPARISONS).text == " ".join(["age>1s"] * MAX_COMPARISONS)


def test_a_pattern_that_backtracks_is_answered_at_once() -> None:
    assert not Filter("client_id=" + "a*" * 100 + "b").matches(looked(client_id="a" * 256))


def test_the_processors_choose_by_a_listener_that_is_named() -> None:
    found = [Filter(text).listener for text in ("listener=kafka age>1s", "listener=k*", "listener!=kafka", "", "listener=a listener=b")]
    assert found == ["kafka", None, None, None, "a"]
