"""Upper bounds of histograms' buckets, inclusive; one more bucket lies above them. Each is a series, so they are few."""

from typing import Final

__all__ = [
    "APPEND_BOUNDS",
    "CONNECTION_BOUNDS",
    "FORWARD_BOUNDS",
    "HANDLER_BOUNDS",
    "HANDSHAKE_BOUNDS",
    "KAFKA_BOUNDS",
    "LAG_BOUNDS",
    "RPC_BOUNDS",
    "SIZE_BOUNDS",
    "WAIT_BOUNDS",
]

SIZE_BOUNDS: Final = tuple(float(256 << 2 * step) for step in range(11))
"""Bytes, 256 to 256 MiB: powers of two, so that log2 classes fold into them."""
CONNECTION_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
HANDSHAKE_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HANDLER_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
APPEND_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
WAIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
FORWARD_BOUNDS: Final = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)
KAFKA_BOUNDS: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
RPC_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
LAG_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)
