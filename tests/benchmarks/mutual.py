"""framegate and HAProxy that require client certificates, and whose own certificate is replaced while they run."""

from __future__ import annotations

import abc
import socket
from contextlib import closing
from pathlib import Path

from candidates import Candidate, Framegate, HaProxy
from driver import VoidRoundError
from steered import control

__all__ = ["AUTHORITY", "FramegateMutual", "HaProxyMutual", "Mutual"]

AUTHORITY = "authority"
"""The name of the authority of clients' certificates; its file is beside the server's certificate."""


class Mutual(Candidate):
    """Verifies clients against the authority whose file is beside the server's certificate."""

    @property
    def authority(self) -> Path:
        """The file of the authority."""
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
