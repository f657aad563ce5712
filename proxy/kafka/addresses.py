"""Replaces the addresses of brokers in answers by those that clients are told.

Metadata, FindCoordinator and DescribeCluster have them at the beginning (``HEAD``); Produce, Fetch, ShareFetch and ShareAcknowledge have those of
new leaders at the end (``TAIL``), usually none (``lacks_endpoints``). In all of them an address is three fields in a row: node id, host, port. Only
lengths and addresses change: an answer is returned as slices of the old one with replacements between them.

Answers are walked to the end, without a look at records; of an answer of the first kind that passes in pieces only the first part is there, and
is walked to the last address. One of the second kind that passes in pieces cannot change its size: see ``endpoint_eraser``.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import SIZE_MARK, Program, compile_program
from framegate.proxy.kafka.schema import known_api
from framegate.proxy.kafka.values import string_at, varint, varint_at
from framegate.proxy.kafka.walker import Walker

NONE: Final = 0  # no addresses of brokers
HEAD: Final = 1  # Addresses at the beginning of the answer
TAIL: Final = 2  # Addresses at the end of the answer

_PRODUCE: Final = 0
_FETCH: Final = 1
_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_DESCRIBE_CLUSTER: Final = 60
_SHARE_FETCH: Final = 78
_SHARE_ACKNOWLEDGE: Final = 79
_BROKERS: Final = 1  # an endpoint type of DescribeCluster
_PRODUCE_ENDPOINTS: Final = 10  # the version from which on answers have endpoints
_FETCH_ENDPOINTS: Final = 16
_TOPIC_IDS: Final = 13  # the version of Produce from which on topics have ids, of 16 bytes, instead of names
_LONG: Final = 0x80  # a varint below this is one byte
_FIXED: Final = 30  # bytes of a partition before its first length, of Produce and of Fetch
_ONE: Final = 2  # the number of one element
_ID: Final = 16  # bytes of a topic's id
_ONE_PRODUCED: Final = 46  # bytes of an answer to Produce of one partition, without the topic's name or id
_LEAST_FETCHED: Final = 72  # likewise to Fetch, without records
_FETCHED: Final = 63  # bytes before the aborted transactions of the first partition of the first topic
_LOST: Final = 1 << 40
_NO_ERRORS: Final = 0x010000  # an empty array, a null string and no tagged fields

_ADDRESS: Final = 1  # marks
_ADDRESS_END: Final = 2
_LIST: Final = 3
_LIST_END: Final = 4
_TYPE: Final = 5
_CONTENT_END: Final = 6
_LISTS: Final = {"Brokers<": _LIST, "Brokers>": _LIST_END, "EndpointType<": _TYPE, "Brokers.Port>": _ADDRESS_END}
_MARKS: Final[dict[int, dict[str, int]]] = {
    _METADATA: {**_LISTS, "Brokers.NodeId<": _ADDRESS},
    _DESCRIBE_CLUSTER: {**_LISTS, "Brokers.BrokerId<": _ADDRESS},
    _FIND_COORDINATOR: {"NodeId<": _ADDRESS, "Port>": _ADDRESS_END, "Coordinators.NodeId<": _ADDRESS, "Coordinators.Port>": _ADDRESS_END},
}
_ENDPOINTS: Final = {"NodeEndpoints.NodeId<": _ADDRESS, "NodeEndpoints.Port>": _ADDRESS_END, "NodeEndpoints>": _CONTENT_END}


def carries_addresses(key: i64, version: i64) -> i64:
    """Whether answers to a request have addresses of brokers, and where: ``NONE``, ``HEAD`` or ``TAIL``."""
    if key > _METADATA:
        if key in (_FIND_COORDINATOR, _DESCRIBE_CLUSTER):
            return HEAD
        return TAIL if key in (_SHARE_FETCH, _SHARE_ACKNOWLEDGE) else NONE
    if key == _METADATA:
        return HEAD
    if key == _PRODUCE:
        return TAIL if version >= _PRODUCE_ENDPOINTS else NONE
    return TAIL if key == _FETCH and version >= _FETCH_ENDPOINTS else NONE


def lacks_endpoints(key: i64, version: i64, data: bytes, start: i64, end: i64) -> bool:
    """Whether an answer has no address: of an API without any, or one of Produce or Fetch that follows its schema and has no tagged field. False says
    nothing: ``AddressRewriter`` must look. Most answers have no address, and this takes less than a tenth of the time. ``data``: has the body of the
    answer from ``start`` to ``end``, or only its beginning: then one of Produce or Fetch is False.
    """
    size = end - start
    if key == _PRODUCE:
        if version < _PRODUCE_ENDPOINTS:
            return True
        name = size - _ONE_PRODUCED  # bytes, with the length, if the answer has one partition
        if end > i64(len(data)) or name <= 0 or name >= _LONG:
            return _is_usual_produce(version, data, start, end)
        head = read_i64_be(data, start + 4) >> 40  # the numbers of tagged fields and of topics, the length
        if version >= _TOPIC_IDS:
            head = (head >> 8 << 8) + _ID
        if (
            head == _ONE << 8 | name
            and read_i64_be(data, end - 40) >> 56 == _ONE
            and i64(read_i32_be(data, end - 9)) == _NO_ERRORS << 8
            and data[end - 1] == 0
        ):
            return True
        return _is_usual_produce(version, data, start, end)
    if key == _FETCH:
        if version < _FETCH_ENDPOINTS:
            return True
        if (
            end <= i64(len(data))
            and size >= _LEAST_FETCHED
            and data[start + 4] == 0
            and read_i64_be(data, start + 8) & 0xFF == _ONE
            and data[start + 32] == _ONE
            and read_i32_be(data, end - 4) & 0xFFFFFF == 0
            and start + _FETCHED + _after_fetched(read_i64_be(data, start + _FETCHED)) == end - 3
        ):
            return True
        return _is_usual_fetch(data, start, end)
    return carries_addresses(key, version) == NONE


def _is_usual_produce(version: i64, data: bytes, start: i64, end: i64) -> bool:
    last = end - 5  # where the fields behind the topics begin
    if end > i64(len(data)) or last < start + 6 or read_i16_be(data, end - 2) & 0xFF != 0:
        return False
    topics = i64(read_i16_be(data, start + 4))  # behind no tagged fields
    pos = start + 6
    if topics <= 0 or topics >= _LONG:
        return False
    while topics > 1:
        name: i64 = 16  # bytes, with the length; below 0 if they are more than 127
        if version < _TOPIC_IDS:
            name = i64(read_i16_be(data, pos)) >> 8
        pos += name
        if name <= 0 or pos >= last:
            return False
        partitions = i64(read_i16_be(data, pos)) >> 8
        if partitions <= 0:
            return False
        pos += 1
        while partitions > 1:
            pos += _FIXED + 3
            if pos >= last or i64(read_i32_be(data, pos - 3)) >> 8 != _NO_ERRORS:
                return False
            partitions -= 1
        if pos >= last or i64(read_i16_be(data, pos)) >> 8 != 0:
            return False
        pos += 1
        topics -= 1
    return pos == last


def _is_usual_fetch(data: bytes, start: i64, end: i64) -> bool:
    last = end - 1  # where the number of tagged fields is
    if end > i64(len(data)) or last < start + 16 or read_i16_be(data, last - 1) & 0xFF != 0 or i64(read_i16_be(data, start + 4)) >> 8 != 0:
        return False
    topics = i64(read_i16_be(data, start + 15)) >> 8
    pos = start + 16
    if topics <= 0:
        return False
    while topics > 1:
        pos += 16
        if pos >= last:
            return False
        partitions = i64(read_i16_be(data, pos)) >> 8
        if partitions <= 0:
            return False
        pos += 1
        while partitions > 1:
            pos += _FIXED
            if pos + 8 > last:
                return False
            pos += _after_fetched(read_i64_be(data, pos))
            if pos >= last or i64(read_i16_be(data, pos)) >> 8 != 0:
                return False
            pos += 1
            partitions -= 1
        if pos >= last or i64(read_i16_be(data, pos)) >> 8 != 0:
            return False
        pos += 1
        topics -= 1
    return pos == last


def _after_fetched(head: i64) -> i64:
    """How many bytes the rest of a partition has up to its tagged fields; very many if it has aborted transactions, or 2 MiB of records. ``head``:
    its first eight bytes: the number of aborted transactions, the preferred replica, the first bytes of the records' size.
    """
    size = head >> 16 & 0x7F
    width: i64 = 6
    if head & 0x800000:
        size |= (head >> 8 & 0x7F) << 7
        width = 7
        if head & 0x8000:
            size |= (head & 0x7F) << 14
            width = 8
            if head & 0x80:
                return _LOST
    if head >> 57 != 0:
        return _LOST
    return width + size - 1 if size > 0 else width


class SeenBroker(NamedTuple):
    """A broker as an answer names it."""

    node: int
    host: str
    port: int
    rack: str | None


class AdvertisedBrokers:
    """What clients are told: the address of each broker; of a broker that has none, the bootstrap address."""

    def __init__(self, host: str, port: int, brokers: Mapping[int, tuple[str, int]]) -> None:
        self.without: Final[set[int]] = set()  # node ids for which the bootstrap address was told
        self._bootstrap: Final = _encoded(host, port)
        self._brokers: Final = {node: _encoded(*address) for node, address in brokers.items()}

    def encoded(self, node: i64, compact: bool) -> bytes:
        """Host and port of a broker as in a message."""
        found = self._brokers.get(node)
        if found is None:
            found = self._bootstrap
            self.without.add(int(node))
        return found[1] if compact else found[0]

    def gains(self, before: "AdvertisedBrokers") -> bool:
        """Whether it has the address of a broker for which ``before`` told the bootstrap's."""
        return not self._brokers.keys().isdisjoint(before.without)


def _encoded(host: str, port: int) -> tuple[bytes, bytes]:
    name = host.encode()
    rest = name + port.to_bytes(4, "big")
    return len(name).to_bytes(2, "big") + rest, varint(len(name) + 1) + rest


class AddressRewriter:
    """Rewrites answers, one after the other."""

    def __init__(self, advertised: AdvertisedBrokers) -> None:
        self.advertised = advertised  # what clients are told; may be replaced at any time
        # the brokers that the last answer names, if it names all of them (Metadata, DescribeCluster) and its list is another than in the answer of
        # the same kind before it; else None
        self.brokers: list[SeenBroker] | None = None
        self.change: i64 = 0  # bytes by which the last answer became longer
        self._walker: Final = Walker()
        self._programs: Final[dict[int, Program]] = {}
        self._seen: Final[dict[int, bytes]] = {}

    def rewrite(self, key: i64, version: i64, data: bytes, start: i64, end: i64, size: i64 = -1) -> list[bytes] | None:
        """Replace the addresses in an answer.

        Args:
            key, version: of the request; ``carries_addresses`` is not NONE.
            data: has the body of the answer, from the correlation id on, from ``start`` to ``end``.
            size: bytes of the whole body, if only its first part is there. All addresses must be within it.

        Returns the new bytes in place of those from ``start`` to ``end``, in pieces; None: nothing changes.

        Raises KafkaFormatError: the answer does not follow its schema, or has addresses beyond the part that is there.
        """
        program = self._program(key, version, size >= 0)
        walker = self._walker
        walker.begin(program, start, end if size < 0 else start + size)
        if not walker.feed(data, start, end):
            raise KafkaFormatError(f"addresses beyond the first {end - start} bytes", walker.position - start)
        self.brokers = None
        self.change = 0
        if not len(walker.marks):
            return None
        if key in (_METADATA, _DESCRIBE_CLUSTER):
            self._note(key, version, data, program.compact)
        return self._pieces(data, start, end, program.compact)

    def _program(self, key: i64, version: i64, is_part: bool) -> Program:
        place = (key << 16 | version) << 1 | (1 if is_part else 0)
        found = self._programs.get(place)
        if found is None:
            marks = _MARKS[key] if carries_addresses(key, version) == HEAD else _ENDPOINTS
            found = compile_program(known_api(key, version), version, answer=True, marks=marks, head=is_part)
            self._programs[place] = found
        return found

    def _pieces(self, data: bytes, start: i64, end: i64, compact: bool) -> list[bytes] | None:
        """The answer with other addresses, from the walker's marks."""
        marks = self._walker.marks
        pieces: list[bytes] = []
        done = start
        address: i64 = 0
        size_at: i64 = -1  # of the tagged field that has the addresses
        first: i64 = 0  # the piece that is cut first behind it, and where that begins
        first_at = start
        index: i64 = 0
        while index < i64(len(marks)):
            pos = marks[index + 1]
            mark = marks[index]
            if mark == _ADDRESS:
                address = pos
            elif mark == _ADDRESS_END:
                new = self.advertised.encoded(i64(read_i32_be(data, address)), compact)
                old = data[address + 4 : pos]
                if old != new and not _is_empty(old, compact):
                    pieces.append(data[done : address + 4])
                    pieces.append(new)
                    done = pos
                    self.change += i64(len(new)) - i64(len(old))
            elif mark == SIZE_MARK:
                size_at = pos
                first, first_at = i64(len(pieces)), done
            elif size_at >= 0 and self.change != 0:  # _CONTENT_END
                self._resize(data, size_at, pos, pieces, first, first_at)
            index += 2
        if not pieces:
            return None
        pieces.append(data[done:end])
        return pieces

    def _resize(self, data: bytes, size_at: i64, end: i64, pieces: list[bytes], first: i64, first_at: i64) -> None:
        """Replace the size of the tagged field, within the first piece that was cut behind it."""
        content = varint_at(data, size_at)[1]
        new = varint(end - content + self.change)
        piece = pieces[first]
        pieces[first : first + 1] = [piece[: size_at - first_at], new, piece[content - first_at :]]
        self.change += i64(len(new)) - (content - size_at)

    def _note(self, key: i64, version: i64, data: bytes, compact: bool) -> None:
        """Set ``brokers`` if the list is another one than before."""
        marks = self._walker.marks
        begin: i64 = 0
        index: i64 = 0
        count = i64(len(marks))
        while marks[index] != _LIST:
            if marks[index] == _TYPE and data[marks[index + 1]] != _BROKERS:
                return
            index += 2
        begin = index + 2
        seen = data[marks[index + 1] : marks[count - 1]]
        kind = key << 16 | version
        if self._seen.get(kind) == seen:
            return
        self._seen[kind] = seen
        found: list[SeenBroker] = []
        index = begin
        while index < count - 2:
            broker = _broker(key, version, data, marks[index + 1], marks[index + 3], compact)
            if broker is not None:
                found.append(broker)
            index += 4
        self.brokers = found


def _is_empty(address: bytes, compact: bool) -> bool:
    """Whether the host is empty: Kafka's "no node"."""
    return address[0] == 1 if compact else read_i16_be(address, 0) == 0


def _broker(key: i64, version: i64, data: bytes, start: i64, end: i64, compact: bool) -> SeenBroker | None:
    """A broker of a list whose address goes from ``start`` to ``end``; None: it is fenced, so it does not serve clients."""
    host, _ = string_at(data, start + 4, compact)
    rack: str | None = None
    after = end
    if key == _DESCRIBE_CLUSTER or version >= 1:
        rack, after = string_at(data, end, compact)
    if key == _DESCRIBE_CLUSTER and version >= 2 and data[after] != 0:
        return None
    return SeenBroker(read_i32_be(data, start), host or "", read_i32_be(data, end - 4), rack)
