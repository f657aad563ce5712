"""Large batches: what a record is, and what counts as fetched. A real broker and proxy are in tests/integration/test_kafka.py."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from control.demo import fetches
from control.demo.fetches import Options, exchange, value_of
from control.demo.records import KEY


class FakeMessage:
    """A record as a consumer gets it; without key and value it is news of the client, not a record."""

    def __init__(self, key: bytes | None, value: bytes | None, error: object = None) -> None:
        self._key, self._value, self._error = key, value, error

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def partition(self) -> int:
        return 0

    def error(self) -> object:
        return self._error


class FakeBroker:
    """Makes producers and consumers of one partition that it holds in a list.

    Attributes:
        refusal: the error that each record is refused with; None: it is taken.
        give: what a consumer gets of all the records.
        settings: of every client, in the order of their making.
        open_count: consumers that are not closed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[FakeMessage] = []
        self.refusal: KafkaError | None = None
        self.give: Callable[[list[FakeMessage]], list[FakeMessage]] = list
        self.settings: list[dict[str, Any]] = []
        self.open_count = 0
        monkeypatch.setattr(fetches, "Producer", lambda settings: FakeProducer(self, settings))
        monkeypatch.setattr(fetches, "Consumer", lambda settings: FakeConsumer(self, settings))


class FakeProducer:
    """Acknowledges when it is flushed."""

    def __init__(self, broker: FakeBroker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._told: list[Callable[[], None]] = []
        broker.settings.append(settings)

    def produce(self, topic: str, key: bytes, value: bytes, partition: int, on_delivery: Callable[[KafkaError | None, Any], None]) -> None:
        assert (topic, partition) == ("large", 0)
        message = FakeMessage(key, value)
        self._told.append(lambda: on_delivery(self._broker.refusal, message))
        self._broker.records.append(message)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        for tell in self._told:
            tell()
        return 0


class FakeConsumer:
    """Gives what the broker gives, a few records at a time."""

    def __init__(self, broker: FakeBroker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._left: list[FakeMessage] = []
        broker.settings.append(settings)
        broker.open_count += 1

    def assign(self, partitions: list[Any]) -> None:
        assert [(part.topic, part.partition) for part in partitions] == [("large", 0)]
        self._left = self._broker.give(self._broker.records)

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        given, self._left = self._left[:7], self._left[7:]
        return given

    def close(self) -> None:
        self._broker.open_count -= 1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    monkeypatch.setattr(fetches, "_GIVE_UP_S", 0.05)
    return FakeBroker(monkeypatch)


def exchanged(count: int = 20, consumers: int = 2) -> dict[str, Any]:
    return exchange(Options(bootstrap="h:1", topic="large", count=count, consumers=consumers), lambda row: None)


def faults(facts: dict[str, Any]) -> dict[str, int]:
    return {name: facts[name] for name in ("wrong", "doubled", "out_of_order", "missing")}


def test_values_carry_their_number_and_differ_in_the_rest() -> None:
    values = [value_of(number) for number in range(2 * fetches.BATCH_RECORDS)]
    assert {len(value) for value in values} == {fetches.VALUE_BYTES}
    assert [KEY.unpack(value[: KEY.size])[0] for value in values] == list(range(len(values)))
    assert len({value[KEY.size :] for value in values}) == len(values)


def test_every_consumer_gets_every_record(broker: FakeBroker) -> None:
    told: list[dict[str, Any]] = []
    facts = exchange(Options(bootstrap="h:1", topic="large", count=20, consumers=3), told.append)
    assert (facts["produced"], facts["consumed"]) == (20, 60)
    assert faults(facts) == {"wrong": 0, "doubled": 0, "out_of_order": 0, "missing": 0}
    assert told[0] == {"event": "progress", "produced": 20, "consumed": 0}
    assert broker.open_count == 0


def changed(records: list[FakeMessage]) -> list[FakeMessage]:
    """One bit of the last byte of a record is another."""
    value = bytearray(value_of(5))
    value[-1] ^= 1
    return [FakeMessage(record.key(), bytes(value)) if record.key() == KEY.pack(5) else record for record in records]


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (changed, {"wrong": 2}),
        (lambda records: records[:-3], {"missing": 6}),
        (lambda records: [records[0], *records], {"doubled": 2, "out_of_order": 2}),
        (lambda records: [FakeMessage(None, None, KafkaError(KafkaError._ALL_BROKERS_DOWN)), *records], {}),
    ],
)
def test_what_each_consumer_found_is_counted(
    broker: FakeBroker, give: Callable[[list[FakeMessage]], list[FakeMessage]], expected: dict[str, int]
) -> None:
    broker.give = give
    nothing = dict.fromkeys(("wrong", "doubled", "out_of_order", "missing"), 0)
    assert faults(exchanged()) == {**nothing, **expected}
    assert broker.open_count == 0


def test_a_record_that_the_broker_refuses_is_an_error(broker: FakeBroker) -> None:
    broker.refusal = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        exchanged()


def test_a_batch_is_made_whole_and_is_an_answer_of_its_own(broker: FakeBroker) -> None:
    exchanged(consumers=1)
    producer, consumer = broker.settings
    largest = int(fetches.TOPIC_SETTINGS["max.message.bytes"])
    assert producer["batch.num.messages"] * fetches.VALUE_BYTES == fetches.BATCH_BYTES == 50 << 20
    assert producer["batch.size"] == producer["message.max.bytes"] == largest > fetches.BATCH_BYTES
    # no more than one batch fits, so a broker sends the first one, and that whole
    assert consumer["fetch.max.bytes"] == consumer["max.partition.fetch.bytes"] <= fetches.BATCH_BYTES
    assert consumer["receive.message.max.bytes"] > largest
