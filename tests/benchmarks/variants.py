"""framegate and HAProxy with other settings, each for a part of the bench; and every candidate by its name."""

import abc
import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path

from candidates import Candidate, CRelay, Envoy, Framegate, HaProxy, Nginx, Place
from guard import FramegateBefore
from processes import VoidRoundError
from steered import control

AUTHORITY = "authority"  # the name of the authority of clients' certificates; its file is beside the server's certificate
SETTINGS: dict[str, dict[str, object]] = {
    # hostages: a pool of 64 MiB, and of 4 MiB, the smallest for which there are promises
    "framegate-64m": {"pool": "64MiB", "limit": "60MiB"},
    "framegate-4m": {"pool": "4MiB", "limit": "3MiB"},
    # pressure: requests of 16 MB and answers as large in a pool of 32 MiB, and with room for all of them; slow readers of large answers
    "framegate-32m": {"pool": "32MiB", "limit": "16MiB"},
    "framegate-1g": {"pool": "1GiB", "limit": "16MiB"},
    "framegate-slow": {"pool": "32MiB", "limit": "2MiB"},
    # control: a second listener, whose channels are steered while those of the first are measured
    "framegate-steered": {"more_listeners": ("idle",)},
}


class FramegateLogins(Framegate):
    """With a second listener, whose clients authenticate by SASL. Its users are those of a file that `add_user` makes."""

    name = "framegate-logins"

    @classmethod
    def add_user(cls, place: Place, user: str, password: str) -> None:
        """Make the file with this one user, before a start."""
        file = place.folder / f"{cls.name}.users"
        file.unlink(missing_ok=True)
        command = [cls.program(), "users", "add", user, "--file", str(file)]
        subprocess.run(command, input=f"{password}\n", text=True, check=True, capture_output=True)

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        listeners = configuration["listeners"]
        assert isinstance(listeners, list), "see Framegate"
        sasl = {"mechanisms": ["SCRAM-SHA-512", "PLAIN"], "users": str(self.place.folder / f"{self.name}.users")}
        listeners.append({"name": "logins", "address": "127.0.0.1:0", "upstream": "echo", "protocol": "kafka", "sasl": sasl})
        return configuration


class FramegateTap(Framegate):
    """Records every frame whole. Its log is beside the configuration, and has up to 1 GiB; its queue, 64 MiB."""

    name = "framegate-tap"

    def configuration(self) -> dict[str, object]:
        directory = self.place.folder / f"{self.name}.log.d"
        shutil.rmtree(directory, ignore_errors=True)
        tap = {"directory": str(directory), "budget": "1GiB", "queue_size": "64MiB", "rules": [{"name": "all"}]}
        return {**super().configuration(), "tap": tap}

    def frames(self) -> int | None:
        """Raises VoidRoundError: a frame is not in the log."""
        page = self.metrics()
        lost = self.metric("framegate_tap_dropped", page=page)
        if lost:
            raise VoidRoundError(f"{self.name}: {lost:,.0f} frames are not in the log")
        return super().frames()


class Mutual(Candidate):
    """Verifies clients against the authority whose file is beside the server's certificate."""

    @property
    def authority(self) -> Path:
        return self.place.certificate.certificate.with_name(f"{AUTHORITY}.crt")

    @abc.abstractmethod
    def take(self) -> None:
        """Put the certificate that was written over the present one in force for new connections. Raises VoidRoundError: it is not."""


class FramegateMutual(Framegate, Mutual):
    """Files are looked at only on command."""

    name = "framegate-mutual"

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        listeners = configuration["listeners"]
        assert isinstance(listeners, list), "see Framegate"
        listeners[0]["tls"] |= {"client_auth": "required", "client_ca": str(self.authority)}
        return {**configuration, "rotation": {"poll": "1h"}}

    def take(self) -> None:
        with control(self) as plane:
            results = plane.reload_certificates()
        if results != {"listener/bench": "RESULT_REPLACED"}:
            raise VoidRoundError(f"{self.name}: the certificate was not replaced: {results}")


class HaProxyMutual(HaProxy, Mutual):
    """New certificates are given to it through its socket."""

    name = "haproxy-mutual"

    @property
    def _socket(self) -> str:
        return f"{self.place.folder}/{self.name}.sock"

    def more_settings(self) -> str:
        return f"    stats socket {self._socket} mode 600 level admin\n"

    def client_settings(self) -> str:
        return f" ca-file {self.authority} verify required"

    def take(self) -> None:
        file = self.place.certificate.both
        self._command(f"set ssl cert {file} <<\n{file.read_text().strip()}\n", "Transaction ")
        self._command(f"commit ssl cert {file}", "Committing ")

    def _command(self, text: str, begin: str) -> None:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock:
            sock.settimeout(10)
            sock.connect(self._socket)
            sock.sendall(f"{text}\n".encode())
            answer = b""
            while data := sock.recv(4096):
                answer += data
        if not answer.decode().lstrip().startswith(begin):
            raise VoidRoundError(f"{self.name}: {answer.decode().strip()}")


CANDIDATES: dict[str, type[Candidate]] = {
    **{
        kind.name: kind
        for kind in (CRelay, HaProxy, HaProxyMutual, Nginx, Envoy, Framegate, FramegateLogins, FramegateMutual, FramegateTap, FramegateBefore)
    },
    **{name: type(name, (Framegate,), {"name": name, **settings}) for name, settings in SETTINGS.items()},
}
