"""framegate and HAProxy that ask their clients for certificates, and whose own certificate is replaced while they run."""

from __future__ import annotations

import abc
import socket
from contextlib import closing
from pathlib import Path

from candidates import Candidate, Framegate, HaProxy
from driver import VoidRoundError
from steered import control

__all__ = ["AUTHORITY", "FramegateMutual", "FramegateRenewed", "HaProxyMutual", "Mutual", "Renewed"]

AUTHORITY = "authority"
"""The name of who signs clients' certificates; it lies beside the server's."""


class Renewed(abc.ABC):
    """Takes a certificate that was put in the place of the one before."""

    @abc.abstractmethod
    def take(self) -> None:
        """Have new connections meet it from now on.

        Raises:
            VoidRoundError: they do not.
        """


class Mutual(Candidate, Renewed):
    """Verifies clients against the authority whose file lies beside the server's certificate."""

    @property
    def authority(self) -> Path:
        """The file of the authority."""
        return self.place.certificate.certificate.with_name(f"{AUTHORITY}.crt")


class FramegateRenewed(Framegate, Renewed):
    """Two processors; files are looked at when it is told to, and not before."""

    name = "framegate-renewed"
    processors = 2

    def configuration(self) -> dict[str, object]:
        return {**super().configuration(), "rotation": {"poll": "1h"}}

    def take(self) -> None:
        with control(self) as plane:
            results = plane.reload_certificates()
        if results != {"listener/bench": "RESULT_REPLACED"}:
            raise VoidRoundError(f"{self.name}: the certificate was not replaced: {results}")


class FramegateMutual(FramegateRenewed, Mutual):
    """One processor, client certificates required."""

    name = "framegate-mutual"
    processors = 1

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        listeners = configuration["listeners"]
        assert isinstance(listeners, list), "see Framegate"
        listeners[0]["tls"] |= {"client_auth": "required", "client_ca": str(self.authority)}
        return configuration


class HaProxyMutual(HaProxy, Mutual):
    """The same, and a socket on which it is told of new certificates."""

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
