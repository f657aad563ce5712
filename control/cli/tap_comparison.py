"""Compares the answers of a replay with the captured ones, and prints the result: the report of ``framegate tap replay``.

Each answer has one result, the first that applies: ``error_code``, ``size`` or ``content``, in which they differ; ``equal``; or ``same_size``, when
the log does not have the captured body as it passed, and nothing of what it has differs.
"""

import array
import collections
import dataclasses
import hashlib
import math
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from framegate.control.cli.output import counted, print_json, print_line, print_table
from framegate.control.cli.tap_records import Frame
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.kafka.contents import NOT_KNOWN, Contents
from framegate.proxy.tap.record import HASH_BYTES

RESULTS: Final = ("equal", "same_size", "error_code", "size", "content")
_DIFFERENT: Final = ("error_code", "size", "content")
_COLUMNS: Final = (
    "API", "REQUESTS", "EQUAL", "SAME SIZE", "ERROR CODE", "SIZE", "CONTENT", "NO ANSWER", "NOT CAPTURED", "P50 MS", "NOW", "P99 MS", "NOW",
)  # fmt: skip
_MOST_US: Final = 2**31 - 1


class Answer(NamedTuple):
    """A captured answer. ``fault``: why ``body`` is not what passed; empty: it is."""

    size: int  # of the body
    body: bytes  # as far as it is in the log; with the fault ``hash_only`` its hash
    fault: str
    call: int | None  # API key << 16 | version of the request; None: not known
    latency_us: int | None


def answer_of(frame: Frame, fault: str, strip: int, latency_us: int | None) -> Answer:
    """The answer in a frame, without its first ``strip`` bytes, which belong to the header of its framing."""
    call = None if frame.request is None else frame.request.api << 16 | frame.request.version
    if strip and fault == "hash_only":
        return Answer(frame.size - strip, b"", "lengths_only", call, latency_us)
    return Answer(frame.size - strip, bytes(frame.kept[strip:]), fault, call, latency_us)


def result_of(captured: Answer, body: bytes) -> tuple[str, tuple[int, int] | None]:
    """The result of an answer, of ``RESULTS``; with ``error_code`` the captured code and the present one."""
    if captured.fault == "hash_only":
        if captured.body == hashlib.blake2b(body, digest_size=HASH_BYTES).digest():
            return "equal", None
    elif not captured.fault and captured.body == body:
        return "equal", None
    elif captured.fault != "redacted" and captured.call is not None:
        codes = _error_codes(captured, body, captured.call)
        if NOT_KNOWN not in codes and codes[0] != codes[1]:
            return "error_code", codes
    if captured.size != len(body):
        return "size", None
    if captured.fault in ("", "hash_only") or (captured.fault != "redacted" and not body.startswith(captured.body)):
        return "content", None
    return "same_size", None


def _error_codes(captured: Answer, body: bytes, call: int) -> tuple[int, int]:
    """The first error codes of two answers; ``NOT_KNOWN``: it cannot be read, or is not in the log."""
    contents = Contents()
    middle, end = len(captured.body), len(captured.body) + len(body)
    contents.add(captured.body + body, struct.pack("<10i", 0, middle, middle, end, captured.size, len(body), call, call, 1, 1))
    captured_code, code = contents.column("error_code")
    return captured_code, code


@dataclasses.dataclass(slots=True)
class Tally:
    """The requests of one API, and their answers."""

    requests: int = 0  # sent
    results: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # answers by result
    error_codes: collections.Counter[tuple[int, int]] = dataclasses.field(default_factory=collections.Counter)  # captured, now
    unanswered: int = 0  # requests whose captured answer is in the log, and that got none
    not_captured: int = 0  # answers without a captured one in the log
    # captured_us, replayed_us: latencies of the requests that have both
    captured_us: "array.array[int]" = dataclasses.field(default_factory=lambda: array.array("i"))
    replayed_us: "array.array[int]" = dataclasses.field(default_factory=lambda: array.array("i"))

    def compare(self, captured: Answer, body: bytes, captured_us: int | None, replayed_us: int | None) -> None:
        """Count an answer and its latencies."""
        result, codes = result_of(captured, body)
        self.results[result] += 1
        if codes is not None:
            self.error_codes[codes] += 1
        if captured_us is not None and replayed_us is not None:
            self.captured_us.append(min(max(captured_us, 0), _MOST_US))
            self.replayed_us.append(min(max(replayed_us, 0), _MOST_US))


class Report:
    """What a replay did."""

    def __init__(self) -> None:
        self.connections = 0  # opened
        self.failures: collections.Counter[str] = collections.Counter()  # connections that were not opened, or on which not all was sent, by reason
        self.not_sent: collections.Counter[str] = collections.Counter()  # requests, by reason
        self.late_us = 0  # the greatest delay of a request behind its time
        self._tallies: dict[int | None, Tally] = {}

    def of(self, api: int | None) -> Tally:
        """The requests of an API; None: not known, or not Kafka."""
        return self._tallies.setdefault(api, Tally())

    @property
    def requests(self) -> int:
        """Number of requests sent."""
        return sum(tally.requests for tally in self._tallies.values())

    @property
    def equal(self) -> bool:
        """Whether all connections were opened and no answer differs or is missing."""
        tallies = self._tallies.values()
        return not self.failures and not any(tally.unanswered or any(tally.results[name] for name in _DIFFERENT) for tally in tallies)

    def _rows(self) -> Iterable[tuple[str, Tally]]:
        for api, tally in sorted(self._tallies.items(), key=lambda item: -1 if item[0] is None else item[0]):
            if tally.requests or tally.results or tally.unanswered or tally.not_captured:
                yield "-" if api is None else KAFKA_APIS.get(api, f"api-{api}"), tally

    def print(self, output: str) -> None:
        """Print the report as a table or as JSON."""
        if output == "json":
            facts = {"connections": self.connections, "requests": self.requests, "equal": self.equal, "late_us": self.late_us}
            print_json({**facts, "failures": self.failures, "not_sent": self.not_sent, "apis": [_as_dict(*row) for row in self._rows()]})
            return
        print_table(_COLUMNS, (_cells(*row) for row in self._rows()))
        for name, tally in self._rows():
            for (captured, now), count in tally.error_codes.most_common():
                print_line(f"{name}: error code {captured} captured, {now} now: {counted(count, 'answer')}")
        for reason, count in self.not_sent.most_common():
            print_line(f"not sent: {counted(count, 'request')}: {reason}")
        for reason, count in self.failures.most_common():
            print_line(f"failed: {counted(count, 'connection')}: {reason}")
        verdict = ("no answer differs" if self.requests else "nothing was compared") if self.equal else "there are differences"
        print_line(
            f"{counted(self.requests, 'request')} on {counted(self.connections, 'connection')}, at most {self.late_us / 1000:.1f} ms late; {verdict}"
        )


def percentile(values: "array.array[int]", share: float) -> int | None:
    """The least value that is not below ``share`` of the values; None: there are none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else None


def _latencies(tally: Tally) -> list[int | None]:
    return [percentile(values, share) for share in (0.5, 0.99) for values in (tally.captured_us, tally.replayed_us)]


def _cells(name: str, tally: Tally) -> list[Any]:
    results = [tally.results[result] for result in RESULTS]
    latencies = ["-" if value is None else f"{value / 1000:.3f}" for value in _latencies(tally)]
    return [name, tally.requests, *results, tally.unanswered, tally.not_captured, *latencies]


def _as_dict(name: str, tally: Tally) -> dict[str, Any]:
    names = ("captured_p50_us", "replayed_p50_us", "captured_p99_us", "replayed_p99_us")
    return {
        "api": name,
        "requests": tally.requests,
        **{result: tally.results[result] for result in RESULTS},
        "error_codes": [{"captured": captured, "now": now, "answers": count} for (captured, now), count in tally.error_codes.most_common()],
        "unanswered": tally.unanswered,
        "not_captured": tally.not_captured,
        **dict(zip(names, _latencies(tally), strict=True)),
    }
