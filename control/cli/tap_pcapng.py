"""Writes captured connections as a pcapng file: the output of ``framegate tap export``.

The log has frames, no packets. Each frame becomes one TCP segment, or several; SYN, acknowledgements and FIN are made up, so that programs follow the
streams. A frame that is not in the log, and the rest of one that is there in part, is a range of sequence numbers without a segment, as a packet
that a capture lost; a comment says why. Clients have their addresses and ports; a listener has an address of TEST-NET-1 (RFC 5737) or 2001:db8::/32,
with its name, because the log does not have its own.

Source of the format: draft-ietf-opsawg-pcapng; link type 101 is an IP packet without a link layer.
"""

import array
import ipaddress
import struct
from collections.abc import Iterable
from typing import BinaryIO, Final

from framegate.control.cli.output import counted
from framegate.control.cli.tap_connections import REQUEST, RESPONSE, Connection, fault_of, framing_of, header_of
from framegate.control.cli.tap_records import Frame
from framegate.proxy.network.int32 import INT32
from framegate.proxy.tap.record import FRAME_HEADER_BYTES
from framegate.proxy.tap.rules import Address, parse_address

MOST: Final = 65_480
"""Bytes of a segment: those of an IPv4 packet, less the headers."""
KAFKA_PORT: Final = 9092  # Where Wireshark expects Kafka
_PORT: Final = 9999
_SYN: Final = 0x02
_FIN: Final = 0x01
_PSH: Final = 0x08
_ACK: Final = 0x10
_TCP: Final = 6
_FROM_V4: Final = int(ipaddress.IPv4Address("192.0.2.1"))
_FROM_V6: Final = int(ipaddress.IPv6Address("2001:db8::1"))
_CLIENTS: Final = int(ipaddress.IPv4Address("198.18.0.0"))  # of clients whose address is not known: RFC 2544
_PORTS: Final = 1 << 15
_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_NAMES: Final = 4
_PACKET: Final = 6
_RAW_IP: Final = 101
_COMMENT: Final = 1
_NANOSECONDS: Final = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)  # if_tsresol, and the end of the options


class _Flow:
    """The TCP stream that a connection becomes. Lists have two elements: for the client's direction and the other."""

    def __init__(self, client: tuple[Address, int], server: tuple[Address, int]) -> None:
        ends = [client, server]
        self._v4 = client[0].version == 4
        # of each direction: the addresses and the ports, sender first
        self._hosts = [ends[way][0].packed + ends[1 - way][0].packed for way in (0, 1)]
        self._ports = [struct.pack(">HH", ends[way][1], ends[1 - way][1]) for way in (0, 1)]
        self.sequence = [0, 0]  # of the next byte
        self.expected: list[int | None] = [None, None]  # number of the next frame
        self.last_ns = 0  # time of the last frame
        self._count = 0

    def packet(self, way: int, flags: int, payload: "bytes | memoryview" = b"") -> bytes:
        """The next packet of a direction; its bytes are counted."""
        numbers = struct.pack(">II", self.sequence[way], self.sequence[1 - way] if flags & _ACK else 0)
        segment = b"".join((self._ports[way], numbers, struct.pack(">BBHHH", 5 << 4, flags, 65535, 0, 0), payload))
        hosts = self._hosts[way]
        total = checksum(b"".join((hosts, struct.pack(">II", len(segment), _TCP), segment)))
        self.skip(way, len(payload) + (flags & (_SYN | _FIN) != 0))
        if self._v4:
            self._count = (self._count + 1) & 0xFFFF
            head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), self._count, 0x4000, 64, _TCP, 0) + hosts
            head = head[:10] + checksum(head) + head[12:]
        else:
            head = struct.pack(">IHBB", 6 << 28, len(segment), _TCP, 64) + hosts
        return b"".join((head, segment[:16], total, segment[18:]))

    def skip(self, way: int, size: int) -> None:
        """Leave out a range of sequence numbers."""
        self.sequence[way] = (self.sequence[way] + size) & 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071)."""
    total = sum(array.array("H", data + b"\0" * (len(data) & 1)))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("=H", ~total & 0xFFFF)


class PcapNg:
    """Writes one file. Raises OSError."""

    def __init__(self, file: BinaryIO, connections: Iterable[Connection]) -> None:
        """``connections``: all that will come."""
        self.frames = 0  # written, whole or in part
        self.packets = 0
        self.partial = 0  # frames of which the log has a part, or nothing
        self.missing = 0  # frames that are ranges of sequence numbers only
        self._file = file
        self._flows: dict[Connection, _Flow] = {}
        self._unnamed = 0
        self._listeners = {name: index for index, name in enumerate(dict.fromkeys(connection.listener for connection in connections))}
        self._block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        self._block(_INTERFACE, struct.pack("<HHI", _RAW_IP, 0, 0) + _NANOSECONDS)
        self._block(_NAMES, b"".join(self._names()) + bytes(4))

    def _names(self) -> Iterable[bytes]:
        for listener, index in self._listeners.items():
            if listener:
                for kind, host in ((1, ipaddress.IPv4Address(_FROM_V4 + index)), (2, ipaddress.IPv6Address(_FROM_V6 + index))):
                    value = host.packed + listener.encode() + b"\0"
                    yield struct.pack("<HH", kind, len(value)) + _padded(value)

    def _block(self, kind: int, body: bytes) -> None:
        length = 12 + len(body)
        self._file.write(b"".join((struct.pack("<II", kind, length), body, struct.pack("<I", length))))

    def _packet(self, at_ns: int, packet: bytes, comment: str = "") -> None:
        self.packets += 1
        head = struct.pack("<IIIII", 0, at_ns >> 32, at_ns & 0xFFFFFFFF, len(packet), len(packet))
        text = comment.encode()
        options = struct.pack("<HH", _COMMENT, len(text)) + _padded(text) + bytes(4) if text else b""
        self._block(_PACKET, b"".join((head, _padded(packet), options)))

    def summary(self) -> str:
        """What was written, for people."""
        text = f"{counted(self.frames, 'frame')} in {counted(self.packets, 'packet')}"
        if self.partial:
            text += f", {self.partial:,} of them in part"
        return f"{text}; {self.missing:,} missing;" if self.missing else text

    def frame(self, connection: Connection, frame: Frame, *, chosen: bool = True) -> None:
        """Write a frame; before a connection's first frame its SYN, unless the log begins later. Frames that are not ``chosen`` leave no trace."""
        way, at_ns = frame.row.direction, frame.row.capture_ns
        flow = self._flows.get(connection)
        if flow is None:
            flow = self._flows[connection] = self._begin(connection, frame)
        why = self._skip_missing(connection, flow, way, frame.number)
        flow.expected[way], flow.last_ns = frame.number + 1, at_ns
        if not chosen:
            return
        framing = framing_of(connection.framings[way]) or INT32
        kept: bytes | memoryview = frame.kept
        fault = fault_of(frame)
        if fault == "hash_only":
            kept = b""
        if fault:
            why.append(f"{fault}: {len(kept)} of the body's {frame.size} B are in the log")
            self.partial += 1
        self.frames += 1
        wire = header_of(framing, framing, frame.size, kept) + kept[framing.others :]
        rest = frame.size - max(len(kept), framing.others)
        if not rest:
            wire += framing.delimiter
        for start in range(0, len(wire), MOST):
            self._packet(at_ns, flow.packet(way, _PSH | _ACK, wire[start : start + MOST]), "; ".join(why) if not start else "")
        if rest:
            flow.skip(way, rest + framing.tail)

    def _begin(self, connection: Connection, frame: Frame) -> _Flow:
        client = parse_address(connection.peer)
        port = int(connection.peer.rpartition(":")[2]) if client is not None and connection.peer is not None else 0
        if client is None:
            client = ipaddress.IPv4Address(_CLIENTS + self._unnamed // _PORTS)
            port = _PORTS + self._unnamed % _PORTS
            self._unnamed += 1
        index = self._listeners[connection.listener]
        server = ipaddress.IPv4Address(_FROM_V4 + index) if client.version == 4 else ipaddress.IPv6Address(_FROM_V6 + index)
        flow = _Flow((client, port), (server, KAFKA_PORT if connection.kafka else _PORT))
        if frame.number == 0:
            flow.expected = [0, 0]
            for way, flags in ((REQUEST, _SYN), (RESPONSE, _SYN | _ACK), (REQUEST, _ACK)):
                self._packet(frame.row.capture_ns, flow.packet(way, flags))
        return flow

    def _skip_missing(self, connection: Connection, flow: _Flow, way: int, number: int | None) -> list[str]:
        """Leave out the frames that are missing before a number, or None: at the end. Returns what a comment says of them."""
        expected = flow.expected[way]
        lost = connection.lost[way]
        frames, size, reasons = 0, 0, []
        while lost and (number is None or lost[0].first_frame < number):
            found = lost.pop(0)
            if expected is not None:
                frames, size = frames + found.frames, size + found.size
                reasons.append(found.reason)
        hole = 0 if expected is None or number is None else number - expected
        if hole > frames:
            size += FRAME_HEADER_BYTES * (hole - frames)  # the least that they had
            reasons.append("not recorded")
        missing = max(hole, frames)
        flow.skip(way, size)
        self.missing += missing
        return [f"{counted(missing, 'frame')} before this one missing: {', '.join(dict.fromkeys(reasons))}"] if missing else []

    def end(self, connection: Connection) -> None:
        """Write the end of a connection, at the time of its last frame."""
        flow = self._flows.pop(connection, None)
        if flow is None:
            return  # retention deleted its frames meanwhile
        for way in (REQUEST, RESPONSE):
            self._skip_missing(connection, flow, way, None)
        for way, flags in ((REQUEST, _FIN | _ACK), (RESPONSE, _FIN | _ACK), (REQUEST, _ACK)):
            self._packet(flow.last_ns, flow.packet(way, flags))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
