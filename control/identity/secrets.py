"""Passwords and tokens of our own, each in a file that is read again each time it is needed: what renews it need not tell us."""

from collections.abc import Mapping
from typing import Final

__all__ = ["MAX_SECRET", "SecretError", "Secrets"]

MAX_SECRET: Final = 65536
"""Bytes of a file."""


class SecretError(Exception):
    """A file that gives no secret. Its words hold nothing of it."""


class Secrets:
    """The secrets of upstreams, by the name of the credential."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """``files``: paths, by name."""
        self._files: Final = dict(files)

    def read(self, name: str) -> str:
        """The secret: what is in the file, without the end of its line.

        Raises:
            SecretError: there is none.
        """
        path = self._files.get(name)
        if path is None:
            raise SecretError(f"there is no credential {name!r}")
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_SECRET + 1)
        except OSError as error:
            raise SecretError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > MAX_SECRET:
            raise SecretError(f"{path} has more than {MAX_SECRET} bytes")
        try:
            text = data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretError(f"{path} is not UTF-8") from None
        if not text or not text.isprintable():
            raise SecretError(f"{path} holds no secret in one line")
        return text
