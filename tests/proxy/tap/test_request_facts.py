import struct

from framegate.proxy.tap.request_facts import RequestFacts


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
