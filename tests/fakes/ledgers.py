"""A small ledger, as it is written and as it is read."""

from pathlib import Path

from framegate.proxy.tap.ledger import LEDGER_NAME, StreamRecord
from framegate.proxy.tap.ledger_writer import LedgerWriter

BOTH = [("a", "request"), ("a", "response")]


def filled(directory: Path) -> LedgerWriter:
    writer = LedgerWriter(str(directory))
    writer.adopted("n.0.old", 640, 1)
    writer.born("n.0.b", BOTH, 2)
    writer.tapped("n.0.b", [("b", "request")], 3)
    writer.ended("n.0.b", 1280, 4, settled=False)
    writer.deleted("n.0.b", 128, 5, 3, 4)
    writer.born("n.recovery.b", [], 6)
    writer.ended("n.0.b", 1280, 7, settled=True)
    return writer


FILLED = {
    "n.0.old": StreamRecord(1, 0, [], 640, settled=True, adopted=True),
    "n.0.b": StreamRecord(2, 2, [*BOTH, ("b", "request")], 1280, settled=True, deleted_to=128, cut_from_ns=2, cut_until_ns=4),
    "n.recovery.b": StreamRecord(6, 6, [], recovery=True),
}


def lines(directory: Path) -> list[bytes]:
    return (directory / LEDGER_NAME).read_bytes().splitlines(keepends=True)
