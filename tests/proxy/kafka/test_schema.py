"""framegate.proxy.kafka.schema: the texts of the tables as fields, and what is known of the APIs."""

import pytest
from kio.index import load_request_schema, load_response_schema

from framegate.proxy.kafka.schema import Api, api, api_key, apis, understands
from framegate.proxy.kafka.tables import APIS


def test_an_api_is_found_by_key_and_by_name() -> None:
    for found in apis():
        assert api(found.key) is found
        assert api_key(found.name) == found.key
    assert api(4) is None  # LeaderAndIsr, which clients never ask
    assert api_key("LeaderAndIsr") is None
    assert (api_key("Produce"), api_key("Metadata"), api_key("DescribeShareGroupOffsets")) == (0, 3, 90)


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [(0, 3, 13), (3, 0, 13), (17, 0, 1), (22, 0, 5), (55, 0, 1)],
    ids=["Produce", "Metadata", "SaslHandshake", "InitProducerId, whose version 6 is unstable", "DescribeQuorum, whose version 2 has addresses"],
)
def test_the_versions_that_are_understood(key: int, least: int, most: int) -> None:
    assert [understands(key, version) for version in (least - 1, least, most, most + 1)] == [False, True, True, False]


def test_no_version_of_an_unknown_api_is_understood() -> None:
    assert not any(understands(key, 0) for key in (-1, 4, 7, 93, 32767))


def test_headers_are_those_that_kio_has() -> None:
    for found in apis():
        for version in range(found.least, found.most + 1):
            request, answer = (load(found.key, version).__header_schema__ for load in (load_request_schema, load_response_schema))
            assert found.has_header_tags(version, answer=False) == request.__flexible__, (found.name, version)
            assert found.has_header_tags(version, answer=True) == answer.__flexible__, (found.name, version)


def test_a_text_is_read_as_fields() -> None:
    text = "Plain:int32=-1 List:[]{Name:string/2-3?3-3~topicName Ids:[]uuid}/1-3 Hint:{At:int64}/2-3#0@2-3=null"
    plain, array, hint = Api((0, "Some", 0, 3, 3, 2, text, "")).fields(answer=False)
    assert (plain.name, plain.kind, plain.array, plain.default, plain.fields) == ("Plain", "int32", False, "-1", [])
    assert [plain.is_in(version) for version in (-1, 0, 3, 4)] == [False, True, True, False]
    assert (array.kind, array.array, [array.is_in(version) for version in (0, 1, 3)]) == ("", True, [False, True, True])
    name, ids = array.fields
    assert (name.entity, [name.is_in(1), name.is_in(2)], [name.is_nullable(2), name.is_nullable(3)]) == ("topicName", [False, True], [False, True])
    assert (ids.kind, ids.array, ids.is_nullable(3)) == ("uuid", True, False)
    assert ([hint.tag(version) for version in (1, 2, 3)], hint.default, hint.fields[0].kind) == ([-1, 0, 0], "null", "int64")
    assert plain.tag(3) == -1


def test_every_text_of_the_tables_is_read_to_its_end() -> None:
    for row in APIS:
        for answer in (False, True):
            assert sum(text.count(":") for text in (row[6 + answer],)) == count(Api(row).fields(answer)), row[1]


def count(fields: list) -> int:  # type: ignore[type-arg]
    return len(fields) + sum(count(field.fields) for field in fields)
