"""What goes over the link of certificates, keys and authorities: stores, one for each listener and upstream that speaks TLS.

Types, and how a store becomes a row and one again. Control imports this, and must not pay for the data path.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypedDict

__all__ = ["Store", "StoreRow", "StoresRow", "listener_owner", "pack_stores", "read_stores", "upstream_owner"]


class StoreRow(TypedDict):
    """One store. ``files``: where in ``StoresRow.contents`` each file's content is, by path; the others as of ``Store``."""

    number: int
    shown: str
    files: dict[str, int]


class StoresRow(TypedDict):
    """Stores by owner. ``contents``: what is in files, each once, however many stores have it; each character stands for one byte (Latin-1)."""

    contents: list[str]
    stores: dict[str, StoreRow]


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """What one listener, or one upstream, has of files, all of one moment.

    Attributes:
        number: 1 for what was there at the start of control, one more for each that replaced it.
        shown: the fingerprint of the certificate that peers are shown; empty: none is.
        files: what is in each file, by path; Latin-1.
    """

    number: int
    shown: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


def listener_owner(name: str) -> str:
    """Who a listener's store belongs to, as it is called everywhere."""
    return f"listener/{name}"


def upstream_owner(name: str) -> str:
    """Who an upstream's store belongs to."""
    return f"upstream/{name}"


def pack_stores(stores: Mapping[str, Store]) -> StoresRow:
    """Stores, by owner, as a row."""
    places: dict[str, int] = {}
    rows = {
        owner: StoreRow(
            number=store.number, shown=store.shown, files={path: places.setdefault(content, len(places)) for path, content in store.files.items()}
        )
        for owner, store in stores.items()
    }
    return StoresRow(contents=list(places), stores=rows)


def read_stores(row: StoresRow) -> dict[str, Store]:
    """The inverse.

    Raises:
        ValueError: a store has content that did not come along.
    """
    contents = row["contents"]
    found = {}
    for owner, each in row["stores"].items():
        if not all(0 <= place < len(contents) for place in each["files"].values()):
            raise ValueError(f"what is in the files of {owner} was not sent along")
        found[owner] = Store(each["number"], each["shown"], {path: contents[place] for path, place in each["files"].items()})
    return found
