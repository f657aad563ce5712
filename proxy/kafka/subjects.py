"""What a request names: topics, groups and transactional ids. Removes some of them from a request, and from an answer that lists all there are.

Where the names are in the requests of an API and version follows from the schemas. So does the list in the request of which each element has one
result in a list of the answer (``result_list``). If only some elements are refused, the request is sent without them, and their results
are put in front of the broker's. Nothing else in either is changed.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable
from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import Program, compile_program
from framegate.proxy.kafka.schema import Api, Field
from framegate.proxy.kafka.values import string_at, varint, varint_at
from framegate.proxy.kafka.walker import Walker

TOPIC: Final = 1
GROUP: Final = 2
TRANSACTIONAL_ID: Final = 4
_KINDS: Final = {"topicName": TOPIC, "groupId": GROUP, "transactionalId": TRANSACTIONAL_ID}

_LIST: Final = 8  # marks; those below are kinds of names
_ELEMENT: Final = 9
_ELEMENT_END: Final = 10
_LIST_END: Final = 11
_KEY: Final = 12
_SESSION: Final = 13  # id and epoch, four bytes each
_ALL: Final = 14  # a list that may be null
_RESOURCE: Final = 15  # an int8, its type; the name is behind it
_KEY_TYPE: Final = 16
_NAME: Final = 17

_FETCH: Final = 1
_METADATA: Final = 3
_OFFSET_FETCH: Final = 9
_FIND_COORDINATOR: Final = 10
_LIST_GROUPS: Final = 16
_DESCRIBE_CONFIGS: Final = 32
_ALTER_CONFIGS: Final = 33
_DESCRIBE_LOG_DIRS: Final = 35
_ELECT_LEADERS: Final = 43
_INCREMENTAL_ALTER_CONFIGS: Final = 44
_LIST_REASSIGNMENTS: Final = 46
_LIST_TRANSACTIONS: Final = 66
_CONSUMER_GROUP_HEARTBEAT: Final = 68
_LIST_CONFIG_RESOURCES: Final = 74
_RESOURCES: Final = {"Resources.ResourceType<": _RESOURCE}
_MARKS: Final[dict[int, dict[str, int]]] = {
    _FETCH: {"SessionId<": _SESSION},
    _FIND_COORDINATOR: {"KeyType<": _KEY_TYPE, "Key<": _KEY},
    _DESCRIBE_CONFIGS: _RESOURCES,
    _ALTER_CONFIGS: _RESOURCES,
    _INCREMENTAL_ALTER_CONFIGS: _RESOURCES,
    _DESCRIBE_LOG_DIRS: {"Topics<": _ALL},
    _LIST_REASSIGNMENTS: {"Topics<": _ALL},
}
_OTHER_KINDS: Final = {  # of names that are not marked in the schema
    _FIND_COORDINATOR: GROUP | TRANSACTIONAL_ID,
    _LIST_GROUPS: GROUP,
    _DESCRIBE_CONFIGS: TOPIC | GROUP,
    _ALTER_CONFIGS: TOPIC | GROUP,
    _INCREMENTAL_ALTER_CONFIGS: TOPIC | GROUP,
    _LIST_TRANSACTIONS: TRANSACTIONAL_ID,
    _LIST_CONFIG_RESOURCES: TOPIC | GROUP,
}
_RESOURCE_KINDS: Final = {2: TOPIC, 32: GROUP}
_KEY_KINDS: Final = (GROUP, TRANSACTIONAL_ID, GROUP)
_SHARE: Final = 2  # a key type; the key is group:topic id:partition
_TAKES_IDS: Final = (_METADATA, _CONSUMER_GROUP_HEARTBEAT)  # a topic's id in these requests gives no access to the topic
# Lists in answers to requests that need not name what is listed, and the name in each element.
_LISTINGS: Final[dict[int, tuple[tuple[str, str, int], ...]]] = {
    _METADATA: (("Topics", "Name", TOPIC),),
    _OFFSET_FETCH: (("Topics", "Name", TOPIC), ("Groups.Topics", "Name", TOPIC)),
    _LIST_GROUPS: (("Groups", "GroupId", GROUP),),
    _LIST_TRANSACTIONS: (("TransactionStates", "TransactionalId", TRANSACTIONAL_ID),),
}
_BY_ID: Final = (75,)  # DescribeTopicPartitions names the next topic in its answers; clients use Metadata where it is not offered
_MOST_CACHED: Final = 4096
_EVERYTHING: Final = "*"


_CODES: Final = ("ErrorCode", "PartitionErrorCode")
# The lists of a request and an answer that belong together, where no identifier in the schema says so.
_LISTS: Final[dict[int, tuple[str, str]]] = {
    10: ("CoordinatorKeys", "Coordinators"),
    30: ("Creations", "Results"),
    31: ("Filters", "FilterResults"),
    32: ("Resources", "Results"),
    33: ("Resources", "Responses"),
    44: ("Resources", "Responses"),
    51: ("Upsertions", "Results"),
    57: ("FeatureUpdates", "Results"),
}


class Patterns:
    """Patterns as of a shell (``*``, ``?``, ``[…]``), of which one must match a whole name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pattern: Final = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))
        self._known: Final[dict[str, bool]] = {}

    def match(self, name: str) -> bool:
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            found = self._known[name] = self._pattern.fullmatch(name) is not None
        return found


class Allowed:
    """The names that are allowed: by kind, the patterns; a kind that is missing is not restricted. ``kinds``: those that are, added up."""

    def __init__(self, patterns: dict[int, Patterns]) -> None:
        self.kinds: Final[i64] = sum(patterns)
        self._patterns: Final = patterns

    def allows(self, kind: i64, name: str | None) -> bool:
        """Whether a name is allowed; None always is."""
        if name is None or self.kinds & kind == 0:
            return True
        return self._patterns[int(kind)].match(name)


class Finding:
    """What is refused of one request."""

    def __init__(self) -> None:
        # kind, name: the first name that is refused; 0: none is. ``*``: the request asks for everything, or for topics by their ids.
        self.kind: i64 = 0
        self.name: str = ""
        self.whole: bool = False  # the whole request is refused
        self.denied: Final[list[int]] = []  # indexes of the elements of the list that are refused
        self.count: i64 = 0  # of the elements
        self.session_at: i64 = -1  # where the session of a Fetch stands in the request; -1: it has none
        self.key_at: i64 = -1  # likewise the key of a FindCoordinator
        self.element: i64 = -1  # while the list is walked over, the index of the present element; -1: outside of the list
        self._start: i64 = 0
        self._spans: Final[list[tuple[int, int]]] = []
        self._from: i64 = 0
        self._to: i64 = 0

    def refuse(self, kind: i64, name: str) -> None:
        if self.kind == 0:
            self.kind, self.name = kind, name
        if self.element < 0:
            self.whole = True
        elif not self.denied or self.denied[-1] != self.element:
            self.denied.append(int(self.element))

    def walk(self, mark: i64, pos: i64) -> None:
        """Go on to a mark that is no name."""
        if mark == _LIST:
            self._from = pos
        elif mark == _ELEMENT:
            self._start, self.element = pos, self.count
        elif mark == _ELEMENT_END:
            self._spans.append((int(self._start), int(pos)))
            self.count += 1
            self.element = -1
        elif mark == _LIST_END:
            self._to = pos
        elif mark == _KEY:
            self.key_at = pos
        else:
            self.session_at = pos

    def rest(self, data: bytes, *, compact: bool) -> bytes:
        """The request without the elements that are refused."""
        kept = [data[start:end] for index, (start, end) in enumerate(self._spans) if index not in self.denied]
        return b"".join([data[: self._from], _count(len(kept), compact), *kept, data[self._to :]])


class Subjects:
    """Where the requests of one API and version have names."""

    def __init__(self, api: Api, version: int) -> None:
        marks = dict(_MARKS.get(api.key, {}))
        self._key: Final[i64] = api.key
        fields = [field for field in api.fields(answer=False) if field.name != "ForgottenTopicsData"]  # of sessions
        self.by_id: Final = _is_by_id(api, version)  # it has topics by their ids, of which nothing is known
        self.marked: Final = _collect(fields, "", version, marks) | (TOPIC if self.by_id else 0)  # of those that the schema calls names
        self.kinds: Final = self.marked | _OTHER_KINDS.get(api.key, 0)  # of the names that a request may have, or its answer lists
        self._plain: i64 = 0  # the kind of names that are the elements of the list
        lists = result_list(api, version)
        if lists is not None:
            source = lists[0]
            if not source.fields:
                self._plain = marks.get(source.name + "[]<", _KEY)
            if source.fields or self._plain != 0:
                marks.update(
                    {f"{source.name}<": _LIST, f"{source.name}[]<": _ELEMENT, f"{source.name}[]>": _ELEMENT_END, f"{source.name}>": _LIST_END}
                )
        self._program: Final = compile_program(api, version, answer=False, marks=marks, surplus=True)  # librdkafka sends some
        self.compact: Final = self._program.compact  # as of ``Program``
        self._walker: Final = Walker()

    def examine(self, data: bytes, allowed: Allowed) -> Finding:
        """Find what is refused in a request. Raises KafkaFormatError: it does not follow its schema."""
        marks = self._walker.walk(self._program, data, 0, i64(len(data)))
        found = Finding()
        if (self.by_id and allowed.kinds & TOPIC) or self._key == _LIST_CONFIG_RESOURCES:
            found.refuse(allowed.kinds & TOPIC or GROUP, _EVERYTHING)
        key_type: i64 = 0
        index: i64 = 0
        while index < i64(len(marks)):
            mark, pos = marks[index], marks[index + 1]
            index += 2
            if mark < _LIST:
                self._check(data, pos, mark, allowed, found)
            elif mark < _ALL:
                found.walk(mark, pos)
                if mark == _ELEMENT and self._plain != 0:
                    self._check(data, pos, _key_kind(key_type) if self._plain == _KEY else self._plain, allowed, found, key_type)
            elif mark == _RESOURCE:
                self._check(data, pos + 1, i64(_RESOURCE_KINDS.get(data[pos], 0)), allowed, found)
            elif mark == _KEY_TYPE:
                key_type = i64(data[pos])
            if (mark == _ALL or (mark == _LIST and self._key == _ELECT_LEADERS)) and allowed.kinds & TOPIC and self._is_null(data, pos):
                found.refuse(TOPIC, _EVERYTHING)
        if found.key_at >= 0:
            self._check(data, found.key_at, _key_kind(key_type), allowed, found, key_type)
        return found

    def _check(self, data: bytes, pos: i64, kind: i64, allowed: Allowed, found: Finding, key_type: i64 = 0) -> None:
        if kind & allowed.kinds:
            name, _ = string_at(data, pos, self.compact)
            if name is not None and key_type == _SHARE:
                name = name.partition(":")[0]
            if not allowed.allows(kind, name):
                found.refuse(kind, name or "")

    def _is_null(self, data: bytes, pos: i64) -> bool:
        return data[pos] == 0 if self.compact else read_i32_be(data, pos) < 0


def _key_kind(key_type: i64) -> i64:
    """What a key of FindCoordinator is; 0 for a type that is not known, which the broker refuses."""
    return _KEY_KINDS[key_type] if key_type < i64(len(_KEY_KINDS)) else 0


def set_sessionless(data: bytes, session_at: i64) -> bytes | None:
    """A Fetch outside of any session; None: it continues a session, so most of what it asks for is not in it."""
    epoch = i64(read_i32_be(data, session_at + 4))
    if epoch > 0:
        return None
    if read_i64_be(data, session_at) == 0xFFFFFFFF:
        return data
    return data[:session_at] + b"\0\0\0\0\xff\xff\xff\xff" + data[session_at + 8 :]


def result_list(api: Api, version: int) -> tuple[Field, Field] | None:
    """The list of a request whose elements have one result each in a list of the answer, and that list; None: there is none."""
    asked = [field for field in api.fields(answer=False) if field.array and field.is_in(version)]
    for field in api.fields(answer=True):
        if field.array and field.fields and field.is_in(version) and field.tag(version) < 0:
            found = _source(api.key, version, field, asked)
            if found is not None:
                return found, field
    return None


def _source(key: int, version: int, results: Field, asked: Iterable[Field]) -> Field | None:
    """The array of the request whose elements have the results."""
    if not _has_code(results, version):
        return None
    pair = _LISTS.get(key, ("", ""))
    identifier = _identifier(results, version)
    for field in asked:
        if not field.array or not field.is_in(version):
            continue
        if (field.name, results.name) == pair or (identifier and identifier == _identifier(field, version)):
            return field
        if field.name == results.name and field.fields and not identifier:
            return field
    return None


def _identifier(field: Field, version: int) -> str:
    """What the elements of an array are identified by; empty: nothing that the schema names."""
    if field.entity and field.kind:
        return field.entity
    named = next((each.entity for each in field.fields if each.entity in _KINDS and each.is_in(version)), "")
    return named or next((each.name for each in field.fields if each.name == "TopicId" and each.is_in(version)), "")


def _has_code(field: Field, version: int) -> bool:
    """Whether the elements of an array have an error code, of their own or within."""
    return any((each.name in _CODES or _has_code(each, version)) and each.is_in(version) for each in field.fields)


def _collect(fields: Iterable[Field], path: str, version: int, marks: dict[str, int]) -> int:
    """Mark all names below a path; their kinds, added up."""
    kinds = 0
    for field in fields:
        if not field.is_in(version):
            continue
        kind = GROUP if field.name == "GroupId" else _KINDS.get(field.entity, 0)
        if kind:
            marks[f"{path}{field.name}{'[]' if field.array else ''}<"] = kind
        kinds |= kind | _collect(field.fields, f"{path}{field.name}.", version, marks)
    return kinds


def _is_by_id(api: Api, version: int) -> bool:
    return api.key in _BY_ID or (api.key not in _TAKES_IDS and _has_ids(api.fields(answer=False), version))


def _has_ids(fields: Iterable[Field], version: int) -> bool:
    return any((field.name == "TopicId" or _has_ids(field.fields, version)) and field.is_in(version) for field in fields)


_SUBJECTS: Final[dict[int, Subjects]] = {}
_PROGRAMS: Final[dict[int, Program]] = {}
_walker: Final = Walker()


def subjects_of(api: Api, version: i64) -> Subjects:
    """Where the requests of an API and version, which is understood, have names."""
    found = _SUBJECTS.get(int(api.key << 16 | version))
    if found is None:
        found = _SUBJECTS[int(api.key << 16 | version)] = Subjects(api, int(version))
    return found


@functools.cache
def kinds_of(api: Api) -> int:
    """The kinds of names that requests of any version of an API have, or their answers list, added up."""
    found = _OTHER_KINDS.get(api.key, 0)
    for version in range(api.least, api.most + 1):
        found |= _collect(api.fields(answer=False), "", version, {}) | (TOPIC if _is_by_id(api, version) else 0)
    return found


@functools.cache
def greatest_named_version(api: Api) -> int:
    """The greatest version of an API whose requests have topics by name; -1: none has."""
    return max((version for version in range(api.least, api.most + 1) if not _is_by_id(api, version)), default=-1)


def lists_names(key: i64) -> int:
    """The kinds of names that answers of an API list though requests need not name them, added up."""
    kinds = 0
    for _, _, kind in _LISTINGS.get(int(key), ()):
        kinds |= kind
    return kinds


def without_denied(api: Api, version: i64, data: bytes, allowed: Allowed) -> bytes:
    """Remove what is not allowed from an answer that lists names. ``api``, ``version``: of the request; ``lists_names`` has a kind that is
    restricted. Raises KafkaFormatError: the answer does not follow its schema.
    """
    program = _PROGRAMS.get(int(api.key << 16 | version))
    listings = _LISTINGS[api.key]
    if program is None:
        marks: dict[str, int] = {}
        for path, name, _ in listings:
            marks.update({f"{path}<": _LIST, f"{path}[]<": _ELEMENT, f"{path}.{name}<": _NAME, f"{path}[]>": _ELEMENT_END, f"{path}>": _LIST_END})
        program = _PROGRAMS[int(api.key << 16 | version)] = compile_program(api, int(version), answer=True, marks=marks)
    found = _walker.walk(program, data, 0, i64(len(data)))
    kind: i64 = listings[0][2]
    pieces: list[bytes] = []
    kept: list[bytes] = []
    done: i64 = 0  # what comes before it is in the pieces
    list_at: i64 = 0
    start: i64 = 0
    denied = 0
    allows = True
    index: i64 = 0
    while index < i64(len(found)):
        mark, pos = found[index], found[index + 1]
        index += 2
        if mark == _NAME:
            allows = allowed.allows(kind, string_at(data, pos, program.compact)[0])
        elif mark == _ELEMENT:
            start = pos
        elif mark == _ELEMENT_END:
            if allows:
                kept.append(data[start:pos])
            else:
                denied += 1
        elif mark == _LIST:
            list_at = pos
            kept = []
            denied = 0
        elif denied:
            pieces += [data[done:list_at], _count(len(kept), program.compact), *kept]
            done = pos
    return b"".join([*pieces, data[done:]]) if pieces else data


def with_results(api: Api, version: i64, data: bytes, results: list[bytes], size: i64) -> bytes:
    """Put further results in front of those of an answer. ``api``, ``version``: of the request, which has a ``result_list``. ``size``: of the whole
    body. Raises KafkaFormatError: the answer does not follow its schema, or its list begins behind the part that is there.
    """
    key = int(1 << 32 | api.key << 16 | version)
    program = _PROGRAMS.get(key)
    if program is None:
        lists = result_list(api, int(version))
        assert lists is not None, "results are of the elements of a list"
        program = _PROGRAMS[key] = compile_program(api, int(version), answer=True, marks={f"{lists[1].name}<": _LIST}, head=True)
    _walker.begin(program, 0, size)
    _walker.feed(data, 0, i64(len(data)))
    if not len(_walker.marks):
        raise KafkaFormatError(f"its list is beyond the first {len(data)} bytes", i64(len(data)))
    pos = _walker.marks[1]
    count, after = varint_at(data, pos) if program.compact else (i64(read_i32_be(data, pos)), pos + 4)
    count = max(count - 1 if program.compact else count, 0) + len(results)
    return b"".join([data[:pos], _count(int(count), program.compact), *results, data[after:]])


def _count(count: int, compact: bool) -> bytes:
    return varint(count + 1) if compact else count.to_bytes(4, "big")
