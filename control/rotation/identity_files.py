"""Users, and keys that tokens are signed with, that are new: they hold for who authenticates afterwards. Processors have nothing of them."""

import collections
from collections.abc import Mapping

from control.files import Contents, digest
from control.fleet.identity import Identity
from control.identity.files import MAX_BYTES, IdentityFileError
from control.rotation.source import RefusedError, Reload, Source
from proxy.server.store_rows import listener_owner

__all__ = ["identity_sources"]


def identity_sources(identity: Identity, contents: Mapping[str, Contents]) -> list[Source]:
    """What is to be watched: each file by itself, so that a broken one keeps no other back.

    Args:
        contents: what was read at the start, by listener.
    """
    names = {listener_owner(name): name for name in identity.listeners}

    def load(owner: str, found: Contents) -> None:
        try:
            identity.take(names[owner], found)
        except IdentityFileError as error:
            raise RefusedError(error.path, error.reason) from None

    takers: dict[str, Reload] = collections.defaultdict(lambda: Reload(load))  # each is given one kind: it tells sources apart by their owner
    return [
        Source(owner=owner, kind=kind, paths=(path,), taker=takers[kind], in_force=digest({path: contents[name][path]}), max_bytes=MAX_BYTES)
        for owner, name in names.items()
        for kind, path in identity.files(name).items()
    ]
