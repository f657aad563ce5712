"""The packets of ``framegate tap export``, read back by code that knows the formats from their documents, and by tshark where it is installed."""

import collections
import ipaddress
import itertools
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.tap_pcapng import MOST, checksum
from framegate.proxy.config.model import TapRule
from tests.fakes.captured import MS, answered, asked, kafka_log, plain_log
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.upstream import frame

SYN, ACK, FIN = 0x02, 0x10, 0x01


class Packet(NamedTuple):
    at_ns: int
    source: tuple[str, int]
    target: tuple[str, int]
    sequence: int
    acknowledged: int
    flags: int
    payload: bytes
    comment: str


def export(log: Path, *words: str) -> tuple[Path, str]:
    path = log.parent / "packets.pcapng"
    result = CliRunner().invoke(main, ["tap", "export", str(log), "--pcapng", str(path), *words])
    assert result.exit_code == 0, result.output
    return path, result.stderr


def blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert (length % 4, struct.unpack_from("<I", data, length - 4)[0]) == (0, length)
        yield kind, data[8 : length - 4]
        data = data[length:]


def packets(path: Path) -> list[Packet]:
    kinds = list(blocks(path.read_bytes()))
    assert [kind for kind, _ in kinds[:3]] == [0x0A0D0D0A, 1, 4]
    assert kinds[0][1][:8] == bytes.fromhex("4d3c2b1a01000000")
    assert kinds[1][1] == struct.pack("<HHI HHB3x HH", 101, 0, 0, 9, 1, 9, 0, 0)
    return [_packet(body) for kind, body in kinds if kind == 6]


def _packet(body: bytes) -> Packet:
    _, high, low, captured, size = struct.unpack_from("<IIIII", body)
    assert captured == size
    data, options = body[20 : 20 + size], body[20 + size + -size % 4 :]
    comment = options[4 : 4 + struct.unpack_from("<H", options, 2)[0]].decode() if options else ""
    if data[0] >> 4 == 4:
        assert (ones_sum(data[:20]), struct.unpack_from(">H", data, 2)[0]) == (0xFFFF, size)
        hosts, segment = data[12:20], data[20:]
    else:
        assert struct.unpack_from(">H", data, 4)[0] == size - 40
        hosts, segment = data[8:40], data[40:]
    assert ones_sum(hosts + struct.pack(">II", len(segment), 6) + segment) == 0xFFFF
    source, target, sequence, acknowledged, offset, flags = struct.unpack_from(">HHIIBB", segment)
    assert offset == 0x50
    half = len(hosts) // 2
    names = [str(ipaddress.ip_address(hosts[:half])), str(ipaddress.ip_address(hosts[half:]))]
    return Packet(high << 32 | low, (names[0], source), (names[1], target), sequence, acknowledged, flags, segment[20:], comment)


def ones_sum(data: bytes) -> int:
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    return (total % 0xFFFF) or 0xFFFF


def streams(found: list[Packet]) -> dict[tuple[str, int], bytes]:
    """The bytes that each end sent, zeros where segments are missing."""
    begun: dict[tuple[str, int], int] = {}
    sent: dict[tuple[str, int], bytearray] = collections.defaultdict(bytearray)
    for packet in found:
        at = packet.sequence - begun.setdefault(packet.source, packet.sequence + (packet.flags & SYN != 0))
        if packet.payload or packet.flags & FIN:
            sent[packet.source].extend(bytes(at - len(sent[packet.source])))
            sent[packet.source].extend(packet.payload)
    return {end: bytes(data) for end, data in sent.items()}


def test_frames_are_segments_of_tcp_streams_with_the_times_and_addresses_of_the_capture(tmp_path: Path) -> None:
    path, said = export(kafka_log(tmp_path / "tap", exchanges=2, connections=1, apart_ms=5))
    found = packets(path)
    assert said == f"framegate: 4 frames in 10 packets written to {path}\n"
    assert [packet.flags for packet in found] == [SYN, SYN | ACK, ACK, *[0x18] * 4, FIN | ACK, FIN | ACK, ACK]
    client, server = ("10.0.0.1", 1), ("192.0.2.1", 9092)
    assert {(packet.source, packet.target) for packet in found} == {(client, server), (server, client)}
    payloads = [frame(asked(0)), frame(answered(0)), frame(asked(1)), frame(answered(1))]
    assert [packet.payload for packet in found[3:7]] == payloads
    assert [packet.at_ns - START_NS for packet in found[3:7]] == [0, MS // 2, 5 * MS, 5 * MS + MS // 2]
    for packet, following in itertools.pairwise(found[3:7]):
        assert following.acknowledged == packet.sequence + len(packet.payload)
    assert streams(found) == {client: payloads[0] + payloads[2], server: payloads[1] + payloads[3]}


@pytest.mark.parametrize("size", [MOST - 5, MOST - 4, MOST - 3, 2 * MOST - 4, 300_000])
def test_a_frame_that_is_larger_than_a_packet_is_several_segments(tmp_path: Path, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    found = packets(export(plain_log(tmp_path / "tap", [body]))[0])
    assert set(streams(found).values()) == {frame(body)}
    assert sum(bool(packet.payload) for packet in found) == 2 * -(-(size + 4) // MOST)


RULES = {
    "cut: 4 of": (TapRule(name="r", max_frame_bytes=4), 4),
    "lengths_only: 0 of": (TapRule(name="r", capture="lengths"), 0),
    "hash_only: 0 of": (TapRule(name="r", capture="hash"), 0),
}


@pytest.mark.parametrize("words", RULES)
def test_what_is_not_in_the_log_is_missing_from_the_stream_and_a_comment_says_why(tmp_path: Path, words: str) -> None:
    rule, kept = RULES[words]
    path, said = export(plain_log(tmp_path / "tap", [b"123456", b"abcdef"], rule))
    expected = b"".join(frame(body)[: 4 + kept] + bytes(6 - kept) for body in (b"123456", b"abcdef"))
    found = packets(path)
    assert set(streams(found).values()) == {expected}
    assert {packet.comment for packet in found if packet.payload} == {f"{words} the body's 6 B are in the log"}
    assert "4 of them in part" in said


def test_lost_frames_are_a_range_without_segments(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path / "tap", flush_size=64 << 10, queue_size=64 << 10)
    log.sent[1, "response"] = 1
    log.send([b"kept"])
    log.sent[1, "request"] = 3  # two that no rule took
    log.send([b"more"])
    for _ in range(4):
        log.send([bytes(40_000)])
    log.send([b"answer"], direction="response")
    log.flush()
    log.close()
    path, said = export(tmp_path / "tap")
    found = packets(path)
    lost = 4 - sum(len(packet.payload) == 40_004 for packet in found)
    requests = [packet for packet in found if packet.source == ("10.0.0.1", 1)]
    begin, end = requests[0].sequence + 1, requests[-2].sequence  # behind SYN, and of FIN
    assert (end - begin, lost > 0) == (8 + 8 + 8 + 4 * 40_004, True), "two headers at least, and what the gap says"
    assert [packet.comment for packet in requests if packet.comment] == ["2 frames before this one missing: not recorded"]
    assert f"{3 + lost} missing" in said


def test_a_connection_that_began_before_the_log_has_no_syn(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path / "tap")
    log.sent[1, "request"] = 7
    log.send([b"later"])
    log.flush()
    log.close()
    found = packets(export(tmp_path / "tap")[0])
    assert [packet.flags for packet in found] == [0x18, FIN | ACK, FIN | ACK, ACK]


def test_listeners_and_clients_have_addresses_of_their_own(tmp_path: Path) -> None:
    log = FakeProcessor(tmp_path / "tap")
    for connection, (listener, peer) in enumerate([("a", "[2001:db8::9]:5000"), ("a", "10.1.2.3:77"), ("b", "unix:/run/x"), ("b", None)]):
        found = log._rules.match(listener, "framed", 0, None, peer, connection)
        assert found is not None
        log._points[connection, "request"] = found
        log.send([b"x"], connection=connection)
    log.flush()
    log.close()
    path, _ = export(tmp_path / "tap")
    ends = [(packet.source, packet.target) for packet in packets(path) if packet.payload]
    assert ends == [
        (("2001:db8::9", 5000), ("2001:db8::1", 9999)),
        (("10.1.2.3", 77), ("192.0.2.1", 9999)),
        (("198.18.0.0", 32768), ("192.0.2.2", 9999)),
        (("198.18.0.0", 32769), ("192.0.2.2", 9999)),
    ]
    assert b"\xc0\0\x02\x02b\0" in path.read_bytes()


def test_options_select_frames_and_leave_no_trace_of_others(tmp_path: Path) -> None:
    path, _ = export(plain_log(tmp_path / "tap", [b"small", b"x" * 100, b"tiny"]), "--min-size", "6")
    assert set(streams(packets(path)).values()) == {frame(b"x" * 100)}


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xff", b"\x01\x02\x03", bytes(range(256)) * 9, b"\xff" * 65_535])
def test_the_checksum_is_that_of_rfc_1071(data: bytes) -> None:
    assert ones_sum(data + bytes(len(data) % 2) + checksum(data)) == 0xFFFF


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_tshark_finds_kafka_and_nothing_wrong(tmp_path: Path) -> None:
    path, _ = export(kafka_log(tmp_path / "tap", exchanges=20, connections=3))
    checks = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE")
    fields = [word for name in ("tcp.stream", "kafka.api_key", "kafka.correlation_id", "_ws.expert.severity") for word in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-r", path, *checks, "-Y", "kafka", "-T", "fields", *fields], capture_output=True, text=True, timeout=60, check=True
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == 40
    assert {row[1] for row in rows} <= {"18", ""}
    assert sorted(int(row[2]) for row in rows) == sorted([*range(20), *range(20)])
    assert {row[0] for row in rows} == {"0", "1", "2"}
    analysis = subprocess.run(
        ["tshark", "-r", path, *checks, "-Y", "tcp.analysis.flags or tcp.checksum_bad.expert"], capture_output=True, text=True, timeout=60, check=True
    )
    assert analysis.stdout == ""
