"""Users, and keys that tokens are signed with, that are new: they hold for who authenticates afterwards. Processors have nothing of them."""

from collections.abc import Mapping
from typing import Final

from control.files import Contents, digest
from control.fleet.identity import Identity
from control.identity.files import MAX_BYTES, IdentityFileError
from control.rotation.source import RefusedError, Reload, Source
from proxy.server.store_rows import listener_owner

__all__ = ["KIND", "identity_sources"]

KIND: Final = "sasl"


def identity_sources(identity: Identity, contents: Mapping[str, Contents]) -> list[Source]:
    """What is to be watched.

    Args:
        contents: what was read at the start, by listener.
    """
    names = {listener_owner(name): name for name in identity.listeners}

    def load(owner: str, found: Contents) -> None:
        try:
            identity.take(names[owner], found)
        except IdentityFileError as error:
            raise RefusedError(error.path, error.reason) from None

    taker = Reload(load)
    return [
        Source(owner=owner, kind=KIND, paths=identity.files(name), taker=taker, in_force=digest(contents[name]), max_bytes=2 * MAX_BYTES)
        for owner, name in names.items()
    ]
