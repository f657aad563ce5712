"""A broker behind framegate, and a producer that keeps it busy during a fault; afterwards every record is there, once, in order."""

import dataclasses
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster import processes
from tests.cluster.node import wait_until
from tests.cluster.room import Room
from tests.cluster.workloads import CONFIGURATION, OUTBOUND, broker, certificates, client_job, injected, last_line, service

RATE = 300


class Scene:
    """A broker whose data and whose tap are on claims, with framegate in front of it.

    Args:
        room: the namespace.
        configuration: of framegate.
        options: of ``framegate inject``.
        disk_mib: the size of the tap's disk; 0: that of this machine's.
        change: is applied to the manifest.
    """

    def __init__(
        self, room: Room, configuration: str = CONFIGURATION, *, options: tuple[str, ...] = (), disk_mib: int = 0, change: Callable[[str], str] = str
    ) -> None:
        self.room = room
        self.authority = certificates(room)  # of framegate's certificate
        self.data = room.claim("data")  # the folder of the broker's data, in this machine's view
        # the folder of the tap, likewise
        self.tap = room.volume("framegate-tap-kafka-0")  # the StatefulSet makes the claim
        if disk_mib:
            _mount(self.tap, disk_mib)
        documents = (broker("kafka:9093", claim="data"), service())
        claimed = ("--tap-claim", "framegate-tap", "--no-fs-group")  # the volume is 10001's already
        room.apply_text(change(injected(room, configuration, *documents, options=(*claimed, *options))))
        self.pod = room.wait_ready("app=kafka")  # the broker's
        self.address = room.address(self.pod)  # the pod's

    def application(self) -> processes.Life:
        """The present life of the broker's container."""
        return processes.life(self.room, self.pod)

    def sidecar(self) -> processes.Life:
        """The present life of framegate's container."""
        return processes.life(self.room, self.pod, "framegate")

    def stored(self) -> int:
        """Bytes of records that the broker has stored."""
        return sum(path.stat().st_size for path in self.data.glob("log/records-*/*.log"))

    def wait_traffic(self, timeout_s: float = 30.0) -> None:
        """Wait until the broker has received more records."""
        before = self.stored()
        wait_until(lambda: self.stored() > before, "records that arrive at the broker", timeout_s, 0.02)

    def wait_listening(self, timeout_s: float = 60.0) -> None:
        """Wait until framegate accepts connections, without the API server."""

        def listens() -> bool:
            try:
                socket.create_connection((self.address, 9093), 1.0).close()
            except OSError:
                return False
            return True

        wait_until(listens, "framegate's listener", timeout_s, 0.02)

    def row(self, event: str, timeout_s: float = 30.0, pod: str = "", **fields: Any) -> dict[str, Any]:
        """Wait for a row of the sidecar's present life, in the broker's pod or another."""

        def found() -> dict[str, Any] | None:
            rows = (row for row in self.room.rows(pod or self.pod) if row["event"] == event)
            return next((row for row in rows if all(row.get(name) == value for name, value in fields.items())), None)

        row: dict[str, Any] = wait_until(found, f"a row {event} {fields or ''}", timeout_s, 0.3)
        return row


def _mount(folder: Path, mebibytes: int) -> None:
    """Mount a small disk on a folder, in the node's namespace of mounts; it ends with the node."""
    options = f"size={mebibytes}m,uid=10001,gid=10001,mode=750"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The records that were ``sent``, and the errors that the client's library ``noted`` and hid by trying again."""

    sent: int
    noted: dict[str, int]


class Load:
    """An idempotent producer in a Job of its own, over TLS through the broker's sidecar, from now until ``end``. ``scene``: with the broker.
    ``outbound``: the producer has a framegate of its own, which speaks TLS for it and resolves the broker's name.
    """

    def __init__(self, scene: Scene, *, outbound: bool = False) -> None:
        self._scene = scene
        self._room = scene.room
        words = ("--servers", "kafka:9093", "--rate", str(RATE))
        if outbound:
            alias = {"hostAliases": [{"ip": "127.0.0.1", "hostnames": ["kafka"]}]}
            job = client_job("load", "produce", *words, secret=None, **alias)
            self._room.apply_text(injected(self._room, OUTBOUND.replace("NAMESPACE", self._room.name), job))
        else:
            self._room.apply(client_job("load", "produce", *words, "--ca", "/tls/ca.crt"))
        self._room.wait_ready("app=load")
        self.pod = self._room.pod("app=load")  # the producer's
        scene.wait_traffic(60.0)

    def end(self) -> Outcome:
        """End the producer as Kubernetes does, and check that every record was acknowledged and is stored once and in order."""
        os.kill(processes.life(self._room, self.pod).pid, signal.SIGTERM)
        said = last_line(self._room.wait_job("load"))
        assert (said["failed"], said["left"]) == ({}, 0), said
        assert said["sent"] == said["acknowledged"] > 0, said
        self._room.apply(client_job("reader", "consume", "--servers", "kafka:9093", "--ca", "/tls/ca.crt"))
        read = last_line(self._room.wait_job("reader"))
        assert (read["doubled"], read["disordered"], read["holes"]) == (0, 0, 0), read
        assert read["runs"] == {said["run"]: said["sent"]}
        return Outcome(said["sent"], said["noted"])
