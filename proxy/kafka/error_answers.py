"""The answer by which a broker refuses a whole request: the one that Kafka's ``AbstractRequest.getErrorResponse`` gives.

Most are of one form: an answer with an error code of its own has that and nothing else; another has an element for each element of the request,
with the same names and the error code.
"""

from collections.abc import Iterable
from typing import Any, Final

from framegate.proxy.kafka.message import decode, encode_answer, encode_element
from framegate.proxy.kafka.schema import Field, known_api

MESSAGE: Final = "a rule of framegate does not allow it"
"""In answers that have a text, which clients show: without it, their users look for the reason in the brokers' ACLs."""

_PRODUCE: Final = 0
_FETCH: Final = 1
_METADATA: Final = 3
_ALTER_REPLICA_LOG_DIRS: Final = 34
_CREATE_DELEGATION_TOKEN: Final = 38
_ALTER_USER_SCRAM_CREDENTIALS: Final = 51

# Fields that an element of an answer has from the element of the request that it answers.
_SAME: Final = frozenset(
    {"Name", "Topic", "TopicName", "TopicId", "Index", "Partition", "PartitionIndex", "PartitionId", "ResourceType", "ResourceName", "GroupId", "Key"}
    | {"ProducerId", "TransactionalId", "EntityType", "EntityName"}
)
_FROM_REQUEST: Final = frozenset({(_FETCH, "SessionId"), (_ALTER_USER_SCRAM_CREDENTIALS, "User")})
_OTHER_NAMES: Final = {(_FETCH, "PartitionIndex"): "Partition"}
# Error codes that are not about the request.
_OTHER_CODES: Final = frozenset({"TopicConfigErrorCode", "AcknowledgeErrorCode"})
# Arrays of answers and elements that have an error code, and these arrays all the same.
_ANSWERED: Final = frozenset(
    {(_METADATA, "Topics"), (43, "ReplicaElectionResults"), (45, "Responses"), (46, "Topics"), (49, "Entity"), (50, "Results")}
)
# Values for which Kafka's code does not use the schema's default, by API and field.
_VALUES: Final[dict[tuple[int, str], Any]] = {
    (_PRODUCE, "BaseOffset"): -1,
    (_FETCH, "HighWatermark"): -1,
    (_METADATA, "Brokers"): [],
    (9, "CommittedOffset"): -1,
    (9, "Metadata"): b"",
    (10, "NodeId"): -1,
    (10, "Port"): -1,
    (21, "LowWatermark"): -1,
    (22, "ProducerEpoch"): -1,
    (35, "Results"): [],
    (_CREATE_DELEGATION_TOKEN, "PrincipalType"): b"User",
    (_CREATE_DELEGATION_TOKEN, "PrincipalName"): b"ANONYMOUS",
    (_CREATE_DELEGATION_TOKEN, "TokenRequesterPrincipalType"): b"User",
    (_CREATE_DELEGATION_TOKEN, "TokenRequesterPrincipalName"): b"ANONYMOUS",
    (_CREATE_DELEGATION_TOKEN, "IssueTimestampMs"): -1,
    (_CREATE_DELEGATION_TOKEN, "ExpiryTimestampMs"): -1,
    (_CREATE_DELEGATION_TOKEN, "MaxTimestampMs"): -1,
    (48, "Entries"): None,
}


class _Refusal:
    def __init__(self, key: int, version: int, code: int) -> None:
        self._key: Final = key
        self._version: Final = version
        self._code: Final = code

    def fields(self, fields: list[Field], request: dict[str, Any], top: bool) -> dict[str, Any]:
        present = [field for field in fields if field.is_in(self._version)]
        has_code = any(field.name == "ErrorCode" for field in present)
        found: dict[str, Any] = {}
        for field in present:
            if field.name.endswith("ErrorCode") and field.name not in _OTHER_CODES:
                found[field.name] = self._code
            elif field.name == "ErrorMessage":
                found[field.name] = MESSAGE.encode()
            elif (self._key, field.name) in _VALUES:
                found[field.name] = _VALUES[self._key, field.name]
            elif field.array and field.fields and field.tag(self._version) < 0 and (not has_code or self._is_answered(field.name)):
                found[field.name] = [self.element(field, item) for item in _asked(field, request)]
            elif (field.name in _SAME and not top) or (self._key, field.name) in _FROM_REQUEST:
                name = _OTHER_NAMES.get((self._key, field.name), field.name)
                if name in request:
                    found[field.name] = request[name]
        return found

    def _is_answered(self, name: str) -> bool:
        return (self._key, name) in _ANSWERED or (self._key == _FETCH and self._version < 13)

    def element(self, field: Field, asked: Any) -> dict[str, Any]:
        if isinstance(asked, dict):
            return self.fields(field.fields, asked, False)
        first = next(inner.name for inner in field.fields if inner.name in _SAME and inner.is_in(self._version))
        return self.fields(field.fields, {first: asked}, False)


def _asked(field: Field, request: dict[str, Any]) -> list[Any]:
    """The array of the request that an array of the answer answers."""
    same = request.get(field.name)
    if isinstance(same, list):
        return same
    arrays = [value for value in request.values() if isinstance(value, list)]
    return arrays[0] if arrays else []


def _flattened(key: int, asked: dict[str, Any]) -> dict[str, Any]:
    """The request in the form that its answer has."""
    if key == _METADATA:
        for topic in asked["Topics"] or ():
            topic["Name"] = topic["Name"] or b""
    if key == _ALTER_REPLICA_LOG_DIRS:
        topics: dict[bytes, dict[str, Any]] = {}
        for topic in (topic for item in asked["Dirs"] for topic in item["Topics"]):
            topics.setdefault(topic["Name"], {"TopicName": topic["Name"], "Partitions": []})["Partitions"] += topic["Partitions"]
        return {"Results": list(topics.values())}
    if key == _ALTER_USER_SCRAM_CREDENTIALS:
        return {"Results": [{"User": name} for name in dict.fromkeys(item["Name"] for item in (*asked["Deletions"], *asked["Upsertions"]))]}
    return asked


def error_answer(key: int, version: int, correlation_id: int, request: bytes, code: int) -> bytes | None:
    """The body of an answer that refuses a request. Returns the body, throttle time 0; None: a Produce request with acks=0 has no answer. Raises
    KafkaFormatError: the request does not follow its schema, or its version is not understood.
    """
    found = known_api(key, version)
    asked = decode(key, version, request, 0, len(request))
    if key == _PRODUCE and asked["Acks"] == 0:
        return None
    values = _Refusal(key, version, code).fields(found.fields(True), _flattened(key, asked), True)
    return encode_answer(found, version, correlation_id, values)


def error_elements(key: int, version: int, request: bytes, lists: tuple[str, Field], chosen: Iterable[int], code: int) -> list[bytes]:
    """What refuses a part of a request: elements for an array at the top of its answer. ``lists``: the name of the request's array, and the array of
    the answer that has an element for each of its elements. ``chosen``: indexes of the elements of the request that are refused. Returns the
    elements as they are in an answer. Raises KafkaFormatError: see ``error_answer``.
    """
    found = known_api(key, version)
    items = decode(key, version, request, 0, len(request))[lists[0]]
    refusal = _Refusal(key, version, code)
    return [encode_element(lists[1], version, refusal.element(lists[1], items[index]), found.is_flexible(version)) for index in chosen]
