"""``openssl s_client`` as a program that produces and consumes: as ``confluent_client.py``, with requests of Kafka's protocol written by hand.

One connection, one partition, one request at a time: Produce v3 and Fetch v4, the oldest that brokers understand. What OpenSSL prints goes to
standard error.
"""

import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

PRODUCE, FETCH = (0, 3), (1, 4)
BATCH = 100
GIVE_UP_S = 20.0


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Connection:
    """One ``s_client``."""

    def __init__(self, entry: dict[str, Any]) -> None:
        shown = ["-cert", entry["certificate"], "-key", entry["key"]] if entry["certificate"] else []
        fixed = ["-quiet", "-CAfile", entry["ca"], "-verify_return_error", "-verify_ip", "127.0.0.1", *shown]
        self._process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{entry['port']}", *fixed], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        self._number = 0

    def ask(self, api: tuple[int, int], body: bytes) -> bytes:
        """The answer's body behind the correlation id."""
        self._number += 1
        request = struct.pack(">hhi", *api, self._number) + text("openssl") + body
        self._to.write(struct.pack(">i", len(request)) + request)
        self._to.flush()
        (size,) = struct.unpack(">i", self._exactly(4))
        answer = self._exactly(size)
        assert struct.unpack_from(">i", answer) == (self._number,), "an answer to something else"
        return answer[4:]

    def _exactly(self, size: int) -> bytes:
        data = self._from.read(size)
        if len(data) < size:
            self._process.wait(10)
            raise SystemExit(f"s_client ended with {self._process.returncode}")
        return data

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


def produce(connection: Connection, topic: str, values: list[bytes]) -> None:
    for first in range(0, len(values), BATCH):
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
        )
        for offset, value in enumerate(values[first : first + BATCH]):
            builder.append(offset, timestamp=int(time.time() * 1000), key=None, value=value, headers=[])
        records = bytes(builder.build())
        body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + text(topic) + struct.pack(">iii", 1, 0, len(records)) + records
        answer = connection.ask(PRODUCE, body)
        (error,) = struct.unpack_from(">h", answer, 4 + len(text(topic)) + 4 + 4)
        if error:
            raise SystemExit(f"Produce: error {error}")


def consume(connection: Connection, topic: str, count: int) -> None:
    deadline, offset = time.monotonic() + GIVE_UP_S, 0
    while offset < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"not everything came within {GIVE_UP_S:g} s")
        body = struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + struct.pack(">i", 1) + text(topic) + struct.pack(">iiqi", 1, 0, offset, 1 << 20)
        answer = connection.ask(FETCH, body)
        at = 4 + 4 + len(text(topic)) + 4 + 4
        error, _, _, aborted = struct.unpack_from(">hqqi", answer, at)
        if error:
            raise SystemExit(f"Fetch: error {error}")
        at += 22 + max(aborted, 0) * 16
        (size,) = struct.unpack_from(">i", answer, at)
        records = MemoryRecords(answer[at + 4 : at + 4 + size])
        while (batch := records.next_batch()) is not None:
            for record in batch:
                if record.offset >= offset:
                    offset = record.offset + 1
                    print(record.value.decode(), flush=True)


if __name__ == "__main__":
    found = Connection(json.loads(Path(sys.argv[2]).read_text()))
    try:
        if sys.argv[1] == "produce":
            produce(found, sys.argv[3], [line.rstrip("\n").encode() for line in sys.stdin])
        else:
            consume(found, sys.argv[3], int(sys.argv[4]))
    finally:
        found.close()
