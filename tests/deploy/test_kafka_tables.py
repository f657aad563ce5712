"""deploy/kafka_tables.py: the committed tables are those of Kafka's published schemas."""

from pathlib import Path

import pytest

from tests.demo import broker
from tests.fakes import deploying
from tests.fakes.real_kafka import HAS_BROKER

kafka_tables = deploying.module("kafka_tables")
ROOT = Path(__file__).resolve().parents[2]


@HAS_BROKER
@pytest.mark.kafka
def test_the_tables_are_those_that_the_tool_writes() -> None:
    jar = broker.prepare() / "jars" / f"kafka-clients-{broker.VERSION}.jar"
    assert kafka_tables.module(str(jar)) == (ROOT / "proxy" / "kafka" / "tables.py").read_text()


def test_a_field_is_written_with_what_its_versions_have() -> None:
    field_text = kafka_tables.field_text
    field = {"name": "A", "type": "string", "versions": "2+", "nullableVersions": "4+", "entityType": "groupId", "default": "null"}
    assert field_text(field, {}, (3, 5)) == "A:string?4-5~groupId=null"
    assert field_text(field, {}, (0, 5)) == "A:string/2-5?4-5~groupId=null"
    assert field_text(field, {}, (0, 1)) == ""
    common = {"S": [{"name": "B", "type": "int8", "versions": "0+", "taggedVersions": "1+", "tag": 0, "default": "0"}]}
    assert field_text({"name": "L", "type": "[]S", "versions": "0-1"}, common, (0, 1)) == "L:[]{B:int8#0@1-1}"
