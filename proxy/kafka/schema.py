"""Reads the texts of ``tables``: the fields of Kafka's messages, and facts about its APIs.

A message is the text of its fields with spaces between them. A field is ``Name:type``, for an array ``Name:[]type``; a struct has its fields in
braces in place of a type. Then, where they apply: ``/3-9`` the versions that have it (else all that are valid), ``?3-9`` versions in which it may be
null, ``#0@3-9`` its tag and the versions in which it is a tagged field, ``~topicName`` what it identifies, ``=-1`` its default if that is not zero.
"""

import re
from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.tables import APIS

API_VERSIONS: Final = 18
FIXED_SIZES: Final = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
"""Bytes of the types that always have the same size."""

_LIMITED: Final = {55: 1}  # DescribeQuorum: version 2 has the controllers' own addresses, which no table of ours can replace
_MAX_KEY: Final = 32767
_NAME: Final = re.compile(r" ?(\w+):(\[\])?(\w*)")
_REST: Final = re.compile(r"(?:/(\d+)-(\d+))?(?:\?(\d+)-(\d+))?(?:#(\d+)@(\d+)-(\d+))?(?:~(\w+))?(?:=([^ }]+))?")


class Field:
    """A field of a message."""

    def __init__(self, name: str, kind: str, array: bool, fields: "list[Field]", rest: "list[str | None]", least: int, most: int) -> None:
        self.name: Final = name  # as in Kafka's schema
        self.kind: Final = kind  # its type, of an array that of the elements; empty for a struct
        self.array: Final = array  # whether it is an array
        self.fields: Final = fields  # of the struct
        self._versions = _range(rest[0], rest[1]) if rest[0] else (least, most)
        self._nullable = _range(rest[2], rest[3])
        self._tag = int(rest[4] or -1)
        self._tagged = _range(rest[5], rest[6])
        self.entity: Final = rest[7] or ""  # what it identifies (``topicName``, ``groupId`` …), or empty
        self.default: Final = rest[8] or ""  # as text; empty for zero, false, an empty string or array

    def is_in(self, version: int) -> bool:
        return self._versions[0] <= version <= self._versions[1]

    def is_nullable(self, version: int) -> bool:
        return self._nullable[0] <= version <= self._nullable[1]

    def tag(self, version: int) -> int:
        """The number of a tagged field; -1 where the field is none."""
        return self._tag if self._tagged[0] <= version <= self._tagged[1] else -1


def _range(least: str | None, most: str | None) -> tuple[int, int]:
    return (int(least or 0), int(most or -1)) if least else (0, -1)


def _fields(text: str, position: int, least: int, most: int) -> tuple[list[Field], int]:
    found: list[Field] = []
    while position < len(text) and text[position] != "}":
        name = _NAME.match(text, position)
        assert name is not None, "a text of the tables is not of the form that this module describes"
        position = name.end()
        inner: list[Field] = []
        if text[position : position + 1] == "{":
            inner, position = _fields(text, position + 1, least, most)
            position += 1
        rest = _REST.match(text, position)
        assert rest is not None, "every part of the pattern is optional"
        position = rest.end()
        found.append(Field(name[1], name[3], name[2] is not None, inner, list(rest.groups()), least, most))
    return found, position


class Api:
    """An API of Kafka that brokers offer to clients."""

    def __init__(self, row: tuple[int, str, int, int, int, int, str, str]) -> None:
        # key, name: as Kafka numbers and names it
        self.key: Final = row[0]
        self.name: Final = row[1]
        self.least: Final = row[2]  # the lowest version that is understood
        # the greatest one; no version that Kafka calls unstable, and none with addresses that cannot be replaced
        self.most: Final = min(row[4], _LIMITED.get(row[0], row[4]))
        # the first version with compact lengths and tagged fields; above ``most`` if there is none
        self.flexible: Final = row[5] if row[5] >= 0 else _MAX_KEY
        self._valid = row[3]
        self._texts = (row[6], row[7])
        self._parsed: dict[bool, list[Field]] = {}

    def fields(self, answer: bool) -> list[Field]:
        found = self._parsed.get(answer)
        if found is None:
            found = self._parsed[answer] = _fields(self._texts[answer], 0, self.least, self._valid)[0]
        return found

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields, and request headers of version 2 instead of 1."""
        return version >= self.flexible

    def has_header_tags(self, version: int, answer: bool) -> bool:
        """Whether the header of a request or answer ends with tagged fields. Those of ApiVersions answers never do."""
        return version >= self.flexible and not (answer and self.key == API_VERSIONS)


_BY_KEY: Final = {row[0]: Api(row) for row in APIS}
_BY_NAME: Final = {found.name: found for found in _BY_KEY.values()}


def apis() -> list[Api]:
    """All APIs, by key."""
    return list(_BY_KEY.values())


def api(key: int) -> Api | None:
    """The API of a key; None: unknown, or not for clients."""
    return _BY_KEY.get(key)


def api_key(name: str) -> int | None:
    """The key of an API's name; None: unknown, or not for clients."""
    found = _BY_NAME.get(name)
    return None if found is None else found.key


def understands(key: i64, version: i64) -> bool:
    """Whether requests and answers of a version can be read."""
    found = _BY_KEY.get(key)
    return found is not None and found.least <= version <= found.most


def known_api(key: i64, version: i64) -> Api:
    """The API of a message. Raises KafkaFormatError if the version is not understood."""
    found = _BY_KEY.get(key)
    if found is None or not found.least <= version <= found.most:
        raise KafkaFormatError(f"version {version} of API {key}, which is not understood,", 0)
    return found
