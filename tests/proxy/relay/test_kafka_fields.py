"""The acks of a Produce request, wherever they are."""

import struct

from framegate.proxy.relay.kafka_fields import NO_ACKS_FIELD, produce_acks
from tests.fakes.cases import each_of
from tests.fakes.kafka_frames import request


def test_acks_beyond_the_bytes_at_hand_are_unknown():
    data = request(0, 3, 5, b"\xff\xff" + struct.pack(">hi", 0, 30000))
    for end in range(12, len(data) - 5):
        assert produce_acks(data[:end], 4, end, 3) == NO_ACKS_FIELD


@each_of("acks", [-1, 0, 1])
def test_acks_are_behind_what_clients_call_themselves(acks: int) -> None:
    data = request(0, 3, 5, b"\x00\x03txn" + struct.pack(">hi", acks, 30000))
    assert produce_acks(data, 4, len(data), 3) == acks
