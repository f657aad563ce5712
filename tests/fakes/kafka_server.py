"""A handler that is a Kafka server, as far as clients ask who is there and what it can: ApiVersions and Metadata, from Kafka's protocol guide.

It runs in a handler process, from a copy: a file ``port`` beside it says where clients are sent to, which is known when framegate listens.
"""

import struct
from pathlib import Path
from typing import Final

from framegate.proxy.handler import CLOSE, Context, Result

METADATA: Final = 3
API_VERSIONS: Final = 18
VERSIONS: Final = {METADATA: (8, 8), API_VERSIONS: (0, 4)}
FIRST_FLEXIBLE: Final = 3  # of ApiVersions
UNSUPPORTED_VERSION: Final = 35
CLUSTER: Final = "a-handler"
TOPIC: Final = "answered"
NODE: Final = 1


class KafkaServer:
    """One node, with one topic of one partition."""

    def handle(self, frame: bytes, context: Context) -> Result:
        """A request; one that is not known ends the connection, as a broker does it."""
        key, version, correlation = struct.unpack_from(">hhi", frame)
        if key == API_VERSIONS:
            return struct.pack(">i", correlation) + self._api_versions(version)
        if (key, version) == (METADATA, VERSIONS[METADATA][1]):
            return struct.pack(">i", correlation) + self._metadata()
        return CLOSE

    def _api_versions(self, version: int) -> bytes:
        """A version that is not known is answered as version 0, which every client reads."""
        known = version <= VERSIONS[API_VERSIONS][1]
        error = 0 if known else UNSUPPORTED_VERSION
        if known and version >= FIRST_FLEXIBLE:
            keys = b"".join(struct.pack(">hhhB", key, *span, 0) for key, span in VERSIONS.items())
            return struct.pack(">hB", error, len(VERSIONS) + 1) + keys + struct.pack(">iB", 0, 0)
        keys = b"".join(struct.pack(">hhh", key, *span) for key, span in VERSIONS.items())
        return struct.pack(">hi", error, len(VERSIONS)) + keys + (struct.pack(">i", 0) if known and version else b"")

    def _metadata(self) -> bytes:
        port = int(Path(__file__).with_name("port").read_text())
        nodes = struct.pack(">i", 1)
        broker = struct.pack(">ii", 1, NODE) + _string("127.0.0.1") + struct.pack(">ih", port, -1)
        partition = struct.pack(">ihiii", 1, 0, 0, NODE, 0) + 2 * (nodes + struct.pack(">i", NODE)) + struct.pack(">i", 0)
        topic = struct.pack(">ih", 1, 0) + _string(TOPIC) + b"\0" + partition + struct.pack(">i", 0)
        return struct.pack(">i", 0) + broker + _string(CLUSTER) + struct.pack(">i", NODE) + topic + struct.pack(">i", 0)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
