"""A framing that the relay has never heard of passes through it: frames, limits, pairing of Kafka's requests, and what the tap keeps."""

import struct
from collections.abc import Callable

import pytest
from librt.vecs import vec
from mypy_extensions import i32

from proxy.network.run import PART, PART_FIRST, Run
from proxy.relay.pairing import Pairing
from proxy.relay.pairing_stats import PairingStats
from proxy.tap.block_builder import BlockBuilder
from proxy.tap.record import FLAG_TRUNCATED, FLAG_WITHHELD
from proxy.tap.slicing import find_frames, write_cut
from tests.fakes.framing import LITTLE
from tests.fakes.world import World


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(2, "little") + body


def run_of(*bodies: bytes, head: int = 0) -> Run:
    """A run, the first ``head`` bytes of whose first frame came before."""
    data = b"".join(map(frame, bodies))
    first = len(bodies[0]) + 2 - head if head else 0
    return Run([data[:head]] if head else None, head, data[head:], first, len(data) - head, len(bodies), 0, 0, LITTLE)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_frames_pass_both_ways_however_they_come(make: Callable[..., World], step: int) -> None:
    world = make(framing=LITTLE)
    client, upstream, _ = world.pair()
    data = b"".join(frame(bytes([size % 251]) * size) for size in (0, 1, 255, 256, 300))
    for source, sink in ((client, upstream), (upstream, client)):
        for at in range(0, len(data), step):
            source.sendall(data[at : at + step])
            world.poll(1)
        assert world.read(sink, len(data)) == data


def test_the_limit_holds_for_its_headers(make: Callable[..., World]) -> None:
    world = make(framing=LITTLE, limit=300)
    client, upstream, _ = world.pair()
    good = frame(bytes(300))
    client.sendall(good + frame(bytes(301)))
    assert world.ended(upstream) == good
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["frames"]["request"]) == ("frame_too_large", 1)


@pytest.mark.parametrize("head", [0, 1, 2, 5, 9])
def test_requests_are_paired_with_answers(head: int) -> None:
    pairing = Pairing(PairingStats())
    asked = [struct.pack(">hhi", key, version, number) + b"\xff\xff" for key, version, number in ((3, 9, 1), (36, 1, 2), (1, 13, 3))]
    pairing.requests(run_of(*asked, head=head), 1000)
    assert (pairing.open, list(pairing.sensitive)) == (3, [1])
    pairing.answers(run_of(*(struct.pack(">i", number) for number in (1, 2, 3)), head=min(head, 5)), 6000, True)
    assert [(int(key) >> 16, int(key) & 0xFFFF) for key in pairing.keys] == [(3, 9), (36, 1), (1, 13)]
    assert ([int(size) for size in pairing.request_sizes], list(pairing.sensitive), pairing.lost) == ([10] * 3, [1], False)


@pytest.mark.parametrize("head", [0, 1, 2, 3, 11])
def test_the_tap_keeps_headers_and_cuts_bodies(head: int) -> None:
    run = run_of(b"0123456789", b"", b"abc", b"secret", head=head)
    positions, sizes = find_frames(run)
    assert ([int(at) for at in positions], [int(size) for size in sizes]) == ([0, 12, 14, 19, 27], [10, 0, 3, 6])
    builder = BlockBuilder(1 << 16)
    flags, bodies = write_cut(builder, run, vec[i32]([i32(3)]), 4, False)
    assert (flags, bodies) == (FLAG_TRUNCATED | FLAG_WITHHELD, 19)
    assert bytes(builder.sizes.getvalue()) == struct.pack("<4i", 10, 0, 3, 6)
    assert bytes(builder.starts.getvalue()) == struct.pack("<4i", 0, 6, 8, 13)
    assert builder.data_len == 15


def test_a_piece_tells_the_sizes_of_its_frame() -> None:
    data = frame(bytes(1000))
    assert Run(None, 0, data[:12], 12, 12, 0, 0, PART | PART_FIRST, LITTLE).first_sizes() == (2, 1000)
