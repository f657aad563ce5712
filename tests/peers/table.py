"""Tables of text, and what can never be in them."""

import textwrap
from collections.abc import Mapping
from typing import Final

_NO_SASL: Final = "not possible: speaks no SASL"
_NO_TLS: Final = "not possible: framegate reads frames, so TLS ends at it"
_NO_SERVER_NAME: Final = "not possible: needs TLS"
MATRIX: Final = "produced and consumed: client and way in, by way through"
SAID: Final = "refused: what clients print"
RENEWED: Final = "sessions of 5 s on both sides"
CLUSTER: Final = "three brokers that know nothing of framegate: client, by way in"
SASL_WAYS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CLIENT_NAMES: Final = ("openssl", "confluent-kafka", "kafka-python", "aiokafka", "kcat", "java")
KILLED: Final = "leader killed"
CLUSTER_NAMES: Final = (*CLIENT_NAMES[1:], "franz-go", "sarama", "kafkajs")

TABLES: Final[Mapping[str, Mapping[tuple[str, str], str]]] = {
    MATRIX: {
        **{(f"openssl {way}", through): _NO_SASL for way in SASL_WAYS for through in ("terminated", "swapped", "passed")},
        **{(f"{name} {way}", "passed"): _NO_TLS for name in CLIENT_NAMES for way in ("TLS", "mTLS")},
    },
    SAID: {},
    RENEWED: {},
    CLUSTER: {
        **{(name, "hosts plain"): _NO_SERVER_NAME for name in CLUSTER_NAMES},
        ("kafkajs", KILLED): "not shown: loses records without framegate, too",
    },
}  # each table's cells for which there is no test
_WIDTH: Final = 44


def table(cells: Mapping[tuple[str, str], str], known: Mapping[tuple[str, str], str] | None = None) -> list[str]:
    """Lines: a row for each first name, those of a client together; a column for each second. ``cells``: by row and column. ``known``: more
    of them.
    """
    found = {**cells, **(known or {})}
    columns = list(dict.fromkeys(column for _, column in found))
    rows = sorted(dict.fromkeys(row for row, _ in found), key=_place)
    width = _WIDTH * (3 if len(columns) == 1 else 1)
    wrapped = {cell: textwrap.wrap(text, width) or [""] for cell, text in found.items()}
    first = max(len(row) for row in rows)
    widths = [max(len(column), *(len(line) for row in rows for line in wrapped.get((row, column), [""]))) for column in columns]
    lines = [_line(["", *columns], [first, *widths]), _line(["-" * first, *("-" * width for width in widths)], [first, *widths])]
    for row in rows:
        parts = [wrapped.get((row, column), [""]) for column in columns]
        for number in range(max(map(len, parts))):
            texts = [part[number] if number < len(part) else "" for part in parts]
            lines.append(_line([row if number == 0 else "", *texts], [first, *widths]))
    return lines


def _place(row: str) -> int:
    """Of a row: by the client, the first word."""
    name = row.split()[0].rstrip(":")
    return CLIENT_NAMES.index(name) if name in CLIENT_NAMES else len(CLIENT_NAMES)


def _line(texts: list[str], widths: list[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
