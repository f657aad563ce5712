"""A Secret is replaced under load: once the kubelet has written it into the pod, new connections have the new certificate, and none fails."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509

from tests.cluster.node import wait_until
from tests.cluster.room import Room
from tests.cluster.workloads import CONFIGURATION, broker, certificates, component, give_certificate, service

ROTATIONS = 3
CONNECTS_PER_S = 100
WITHIN_S = 1.0
ASKED = bytes.fromhex("0012000000000001000170")  # ApiVersions, version 0, correlation id 1, client "p"


class Load:
    """TLS connections to a pod: some that stay and send requests, and a hundred new ones each second."""

    def __init__(self, address: str, authority: Path) -> None:
        self._address = (address, 9093)
        self._context = ssl.create_default_context(cafile=str(authority))
        self.connects: list[tuple[float, float, int]] = []
        """When each began and ended, and the serial number of the certificate that it was shown."""
        self.failures: list[str] = []
        self.answers = 0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._come_and_go, self._stay, self._stay, self._stay)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(30.0)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.failures.append(f"{work.__name__}: {error!r}")

    def _connect(self) -> ssl.SSLSocket:
        return self._context.wrap_socket(socket.create_connection(self._address, timeout=10.0), server_hostname="kafka")

    def _ask(self, connection: ssl.SSLSocket) -> None:
        connection.sendall(struct.pack(">i", len(ASKED)) + ASKED)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        _exactly(connection, size)

    def _come_and_go(self) -> None:
        following = time.monotonic()
        while not self._ended.is_set():
            began = time.time()
            with self._connect() as connection:
                shown = connection.getpeercert(binary_form=True)
                assert shown is not None
                self._ask(connection)
            self.connects.append((began, time.time(), x509.load_der_x509_certificate(shown).serial_number))
            following += 1 / CONNECTS_PER_S
            time.sleep(max(0.0, following - time.monotonic()))

    def _stay(self) -> None:
        with self._connect() as connection:
            while not self._ended.is_set():
                self._ask(connection)
                self.answers += 1
                time.sleep(0.01)


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            raise ConnectionError(f"it ended after {len(found)} of {size} bytes")
        found += piece
    return found


def written_at(room: Room, pod: str) -> float:
    """When the kubelet last wrote the Secret into the pod."""
    uid = room.get("pod", pod)["metadata"]["uid"]
    return (room.node.folder / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~secret" / "framegate-tls" / "..data").lstat().st_mtime


def test_new_connections_have_the_new_certificate_within_a_second_of_the_kubelet(room: Room) -> None:
    authority = certificates(room)
    component(room, CONFIGURATION, broker("kafka:9093"), service())
    pod = room.wait_ready("app=kafka")
    took: list[tuple[float, float]] = []
    with Load(room.address(pod), authority.path).running() as load:
        wait_until(lambda: len(load.connects) > CONNECTS_PER_S, "a hundred connections")
        for _ in range(ROTATIONS):
            asked, before = time.time(), written_at(room, pod)
            serial = x509.load_pem_x509_certificate(give_certificate(room, authority)).serial_number
            wait_until(lambda serial=serial: load.connects[-1][2] == serial or load.failures, "the new certificate", 150.0, 0.02)  # type: ignore[misc]
            written = written_at(room, pod)
            assert written > before
            first = next(began for began, _, shown in load.connects if shown == serial)
            last_old = max(began for began, _, shown in load.connects if shown != serial)
            took.append((written - asked, max(first, last_old) - written))
            time.sleep(1.0)
    assert load.failures == []
    assert max(ours for _, ours in took) <= WITHIN_S, took
    rows = room.rows(pod)
    assert [row for row in rows if row["event"] == "closed" and row["cause"] != "peer_closed"] == []
    print(f"\ncluster: {ROTATIONS} rotations, {len(load.connects)} handshakes and {load.answers} answers, none failed; the kubelet took "
          f"{max(kubelet for kubelet, _ in took):.1f} s at most, framegate {max(ours for _, ours in took):.2f} s")  # fmt: skip
