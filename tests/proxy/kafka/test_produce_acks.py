"""The acks of a Produce request, wherever they are."""

import struct

from framegate.proxy.kafka.produce_acks import NO_ACKS_FIELD, produce_acks
from tests.fakes.kafka_frames import request


def test_acks_beyond_the_bytes_at_hand_are_unknown():
    data = request(0, 3, 5, b"\xff\xff" + struct.pack(">hi", 0, 30000))
    for end in range(12, len(data) - 5):
        assert produce_acks(data[:end], 4, end, 3) == NO_ACKS_FIELD
