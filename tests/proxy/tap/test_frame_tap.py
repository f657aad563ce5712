import struct
from pathlib import Path

import pytest

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.tap.frame_tap import FrameTap, RequestFacts
from framegate.proxy.tap.record import DIRECTION_RESPONSE, REASON_PARTIAL_FRAME
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.runs import pieces_of, run_of
from tests.fakes.tap_log import ints
from tests.fakes.tap_read import read_frames, read_gaps

START_NS = 1_700_000_000_000_000_000
NEVER_NS = 1 << 62


def tell(tap: FrameTap) -> None:
    """All that a relay may tell."""
    assert tap.may_read()
    assert tap.append(run_of([b"a", b"secret"], head=[2]), 0, START_NS, ints([1]), ints([5, -1]), ints([7, -1]), ints([9, -1]), ints([3, -1]))
    for run in pieces_of(bytes(300), [100, 100]):
        assert tap.append_part(run, 2, START_NS, False, 5, 6, 7, 8)
    first, _, _ = pieces_of(bytes(300), [100, 100])
    assert tap.append_part(first, 3, START_NS, False, None, None)
    assert tap.is_within
    tap.cut_short(START_NS)
    assert not tap.is_within
    tap.drop(1, 5, 3, START_NS, run_of([b"x"]))
    tap.drop(2, 500, 4, START_NS)
    tap.lose(REASON_PARTIAL_FRAME, 0, 3, 6, START_NS)


@pytest.mark.parametrize("capture", ["full", "lengths", "hash"])
@pytest.mark.parametrize("share", [1.0, 0.0])
def test_a_tap_that_looks_at_frames_and_one_that_does_not_say_the_same(tmp_path: Path, capture: str, share: float) -> None:
    found = []
    for folder, expires_ns in (("plain", 0), ("looking", NEVER_NS)):
        writer = TapWriter(TapConfig(directory=str(tmp_path / folder)), "n", "0", "b")
        rule = TapRule(name="r", capture=capture, sample_connections=share, expires_ns=expires_ns)  # type: ignore[arg-type]
        tap = TapRules((rule,), writer).match("main", "kafka", DIRECTION_RESPONSE, None, "10.0.0.1:5", 77)
        assert tap is not None
        tell(tap)
        assert writer.flush_and_close(1000)
        found.append((type(tap).__name__, list(read_frames(str(tmp_path / folder))), list(read_gaps(str(tmp_path / folder)))))
    assert [item[0] for item in found] == ["TapPoint", "SelectingTap"]
    assert found[0][1:] == found[1][1:]
    assert (len(found[0][1]) == 3) is (share > 0)


@pytest.mark.parametrize("expires_ns", [0, NEVER_NS])
def test_what_is_said_of_answers_is_for_as_many_as_there_are_frames(tmp_path: Path, expires_ns: int) -> None:
    writer = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b")
    tap = TapRules((TapRule(name="r", expires_ns=expires_ns),), writer).match("main", "kafka", DIRECTION_RESPONSE, None, None, 77)
    assert tap is not None
    one, two = ints([1]), ints([1, 2])
    for said in ((one, one, one, two), (one, one, two, two), (one, two, one, one), (one, None, one, one), (one, one, one, None)):
        with pytest.raises(ValueError, match="answers with 1 frames"):
            tap.append(run_of([b"x"]), 0, START_NS, None, *said)
    assert writer.frames_matched == 0


def header(key: int, version: int, name: bytes | None) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1 if name is None else len(name)) + (name or b"")


def add(facts: RequestFacts, key: int, version: int, name: bytes | None, cut: int = 0) -> None:
    data = b"before" + header(key, version, name)
    facts.add(key << 16 | version, data, 6, len(data) - cut)


def said(facts: RequestFacts) -> list[tuple[int, str | None]]:
    return [(key >> 16 if key >= 0 else -1, facts.names[client]) for key, client in zip(facts.keys, facts.clients, strict=True)]


def test_each_request_has_its_api_and_the_name_it_gives() -> None:
    facts = RequestFacts()
    facts.begin(5)
    for key, name in ((0, b"app"), (1, b"app"), (3, b"apq"), (3, b"\xffx"), (3, b"")):
        add(facts, key, 9, name)
    assert said(facts) == [(0, "app"), (1, "app"), (3, "apq"), (3, "�x"), (3, "")]
    assert facts.name == ""
    facts.begin(1)
    add(facts, 18, 3, b"app")
    assert (said(facts), len(facts.names)) == ([(18, "app")], 2)


def test_a_frame_without_a_header_leaves_the_name_and_a_request_without_one_takes_it_away() -> None:
    facts = RequestFacts()
    facts.begin(5)
    add(facts, 0, 9, b"app")
    facts.add(-1, b"", 0, 0)
    add(facts, 7, 0, b"no name, but the body of header version 0")
    add(facts, 7, 1, None)
    add(facts, 0, 9, b"app")
    assert said(facts) == [(0, "app"), (-1, "app"), (7, "app"), (7, None), (0, "app")]


def test_a_name_that_is_not_wholly_there_is_none() -> None:
    facts = RequestFacts()
    facts.begin(3)
    add(facts, 0, 9, b"app")
    add(facts, 0, 9, b"apple", cut=1)
    facts.add(5, b"\0\0\0\x05\0\0\0\x01", 0, 8)
    assert said(facts) == [(0, "app"), (0, None), (0, None)]


def test_names_of_one_run_only_are_kept() -> None:
    facts = RequestFacts()
    for number in range(100):
        facts.begin(2)
        add(facts, 0, 9, b"a%d" % number)
        add(facts, 0, 9, b"b%d" % number)
        assert len(facts.names) == 3
