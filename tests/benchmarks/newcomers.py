"""New TLS connections at a steady rate, each with a full handshake; and what each of them met. A program of its own: several of them are needed.

    newcomers.py PORT AUTHORITY CONNECTIONS_PER_SECOND

One after the other, but the loop is open: a connection is due when it is, whatever became of those before it, and its time counts from then. The
server is verified against the authority; each has one frame echoed, and ends in order.

Says `begun`, goes on until its standard input ends, and says `done` with a row for each connection: when it was due, when it began, when its
handshake ended and when its frame was back (CLOCK_MONOTONIC, ns; 0: it did not come to that), the beginning of the SHA-256 of the certificate that
it met, and what went wrong, if anything did.
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import ssl
import struct
import sys
import time

TIMEOUT_SECONDS = 10.0
BODY = bytes(range(100))
FRAME = struct.pack(">i", len(BODY)) + BODY
SHOWN = 16
"""Characters of a fingerprint."""

Row = list[object]


def connect(port: int, context: ssl.SSLContext, due: int) -> Row:
    """One connection, from its beginning to its end."""
    began, shaken, back, met = time.monotonic_ns(), 0, 0, ""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as raw, context.wrap_socket(raw, server_hostname="localhost") as sock:
            shaken = time.monotonic_ns()
            met = hashlib.sha256(sock.getpeercert(binary_form=True) or b"").hexdigest()[:SHOWN]
            sock.sendall(FRAME)
            answer = b""
            while len(answer) < len(FRAME) and (data := sock.recv(len(FRAME))):
                answer += data
            if answer != FRAME:
                return [due, began, shaken, 0, met, f"{len(answer)} bytes came back, and not those that were sent"]
            back = time.monotonic_ns()
            sock.unwrap().close()
    except OSError as error:  # refused, reset, timed out; ssl's errors are among them
        return [due, began, shaken, back, met, f"{type(error).__name__}: {error}"]
    return [due, began, shaken, back, met, ""]


def run(port: int, context: ssl.SSLContext, rate: float) -> list[Row]:
    """Until standard input ends."""
    rows: list[Row] = []
    start = time.monotonic_ns()
    while True:
        due = start + int(len(rows) * 1e9 / rate)
        if select.select([sys.stdin], [], [], max((due - time.monotonic_ns()) / 1e9, 0))[0]:
            return rows
        rows.append(connect(port, context, due))


def main() -> None:
    """The program."""
    context = ssl.create_default_context(cafile=sys.argv[2])
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    print(json.dumps({"event": "begun"}), flush=True)
    print(json.dumps({"event": "done", "rows": run(int(sys.argv[1]), context, float(sys.argv[3]))}), flush=True)


if __name__ == "__main__":
    main()
