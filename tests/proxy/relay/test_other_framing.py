"""A framing that the relay has never heard of passes through it: frames, limits, pairing of Kafka's requests, and what the tap keeps."""

import struct

from librt.vecs import vec
from mypy_extensions import i32

from framegate.proxy.network.run import PART, PART_FIRST, Run
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.pairing_stats import PairingStats
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.record import FLAG_TRUNCATED, FLAG_WITHHELD
from framegate.proxy.tap.slicing import find_frames, write_cut
from tests.fakes.cases import each_of
from tests.fakes.framing import LITTLE


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(2, "little") + body


def run_of(*bodies: bytes, head: int = 0) -> Run:
    """A run, the first ``head`` bytes of whose first frame came before."""
    data = b"".join(map(frame, bodies))
    first = len(bodies[0]) + 2 - head if head else 0
    return Run([data[:head]] if head else None, head, data[head:], first, len(data) - head, len(bodies), 0, 0, LITTLE)


@each_of("head", [0, 1, 2, 5, 9])
def test_requests_are_paired_with_answers(head: int) -> None:
    pairing = Pairing(PairingStats())
    asked = [struct.pack(">hhi", key, version, number) + b"\xff\xff" for key, version, number in ((3, 9, 1), (36, 1, 2), (1, 13, 3))]
    pairing.requests(run_of(*asked, head=head), 1000)
    assert (pairing.open, list(pairing.sensitive)) == (3, [1])
    pairing.answers(run_of(*(struct.pack(">i", number) for number in (1, 2, 3)), head=min(head, 5)), 6000, True)
    assert [(int(key) >> 16, int(key) & 0xFFFF) for key in pairing.keys] == [(3, 9), (36, 1), (1, 13)]
    assert ([int(size) for size in pairing.request_sizes], list(pairing.sensitive), pairing.lost) == ([10] * 3, [1], False)


@each_of("head", [0, 1, 2, 3, 11])
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
