"""A real MariaDB behind the proxy, as it is and re-framed on the way, with its own client: large messages, many at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.tap.completeness import verify
from tests.fakes import mariadb
from tests.fakes.framegate import Framegate
from tests.fakes.mariadb import MariaDB, sql
from tests.fakes.tap_read import read_frames
from tests.fakes.upstream import read_exactly

LARGEST_PACKET = (1 << 24) - 1
MYSQL = {"framing": "mysql_packet"}
NUMBERED = {"size": 5, "offset": 0, "width": 4}
"""An int32 with one byte behind it, which is a packet's number: the frames of a network between two proxies."""

_missing = mariadb.missing_packages()
pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        bool(_missing) and not os.environ.get("CI"), reason=f"not run: needs a MariaDB (Debian: apt-get install {' '.join(_missing)})"
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    with MariaDB(tmp_path_factory.mktemp("db")) as started:
        yield started


def config_of(endpoint: str, listener: dict[str, Any], upstream: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "memory_pool": {"size": "64MiB"},
        "listeners": [{"name": "sql", "address": "127.0.0.1:0", "upstream": "db", "max_receive_size": "16MiB", **listener}],
        "upstreams": [{"name": "db", "endpoints": [endpoint], **upstream}],
        **other,
    }


def endpoint_of(proxy: Framegate) -> str:
    return "{}:{}".format(*proxy.address("sql"))


@pytest.fixture(scope="module")
def plain(server: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    """MySQL's packets on both sides."""
    with Framegate(tmp_path_factory.mktemp("plain"), config_of(server.address, MYSQL, MYSQL)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def reframed(server: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    """MySQL's packets, then sizes of four bytes big-endian with the packet's number behind, then MySQL's packets: two proxies."""
    between: dict[str, Any] = {"framing": "header", "header": NUMBERED}
    with (
        Framegate(tmp_path_factory.mktemp("back"), config_of(server.address, between, MYSQL)) as back,
        Framegate(tmp_path_factory.mktemp("front"), config_of(endpoint_of(back), MYSQL, between)) as front,
    ):
        yield front


@pytest.fixture(params=["plain", "reframed"])
def proxy(request: pytest.FixtureRequest) -> Framegate:
    found: Framegate = request.getfixturevalue(request.param)
    return found


def rows(done: Any) -> list[list[str]]:
    assert done.returncode == 0, done.stderr.decode()
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def test_statements_and_their_rows(proxy: Framegate) -> None:
    statements = """
        CREATE OR REPLACE TABLE things (id INT PRIMARY KEY, name VARCHAR(40), payload LONGBLOB);
        INSERT INTO things VALUES (1, 'one', NULL), (2, 'zwei', 'abc'), (3, '', '');
        SELECT id, name, payload IS NULL, LENGTH(payload) FROM things ORDER BY id;
        DELETE FROM things WHERE id = 2;
        SELECT COUNT(*), USER() FROM things;
    """
    answers = [["1", "one", "1", "NULL"], ["2", "zwei", "0", "3"], ["3", "", "0", "0"], ["2", f"{mariadb.USER}@localhost"]]
    assert rows(sql(proxy.address("sql"), statements)) == answers


def test_a_result_of_several_mb_in_many_packets(proxy: Framegate) -> None:
    done = sql(proxy.address("sql"), "SELECT seq, REPEAT(CHAR(97 + seq % 26), 4000) FROM seq_1_to_2000;")
    assert rows(done) == [[str(number), chr(97 + number % 26) * 4000] for number in range(1, 2001)]


# A message of 2^24 - 1 bytes or more goes on in further packets, the last of them shorter, maybe empty. A row's value has four bytes in front.
@pytest.mark.parametrize("size", [LARGEST_PACKET - 1, LARGEST_PACKET, LARGEST_PACKET + 1, 2 * LARGEST_PACKET])
def test_messages_at_the_edge_of_a_packet_pass_both_ways(proxy: Framegate, size: int) -> None:
    frames = "SELECT LENGTH('{}') AS a"
    statement = frames.format("x" * (size - len(frames.format("")) - 1))  # the message is the statement and the byte that says so
    assert rows(sql(proxy.address("sql"), statement, "--delimiter=$$")) == [[str(statement.count("x"))]]
    done = sql(proxy.address("sql"), f"SELECT REPEAT('y', {size - 4});")
    assert (done.returncode, done.stdout == b"y" * (size - 4) + b"\n") == (0, True)


# --- what the proxy says of it -----------------------------------------------------------------------------------------------------------


def test_the_tap_has_the_packets_and_not_the_password(server: MariaDB, tmp_path: Path) -> None:
    tap = {"directory": "tap", "rules": [{"name": "all"}]}
    with Framegate(tmp_path, config_of(server.address, MYSQL, MYSQL, tap=tap)) as proxy:
        assert rows(sql(proxy.address("sql"), "SELECT 'a needle', 6 * 7;")) == [["a needle", "42"]]
        closed = proxy.wait_row(lambda row: row["event"] == "closed")
    assert closed["cause"] in ("peer_closed", "upstream_closed"), "after the client's COM_QUIT both end"
    frames = list(read_frames(str(tmp_path / "tap")))
    for direction in ("request", "response"):
        assert closed["frames"][direction] == sum(frame.direction == direction for frame in frames)
    assert frames[0].direction == "response", "the server speaks first"
    assert frames[0].body.startswith(b"\0\x0a"), "its greeting: the packet's number, and the protocol's"
    assert b"\0\x03SELECT 'a needle', 6 * 7" in {frame.body for frame in frames if frame.direction == "request"}
    assert not any(mariadb.PASSWORD.encode() in frame.body for frame in frames)
    assert verify(str(tmp_path / "tap")).complete


# --- what does not come back -------------------------------------------------------------------------------------------------------------


def test_a_framing_without_other_bytes_loses_the_packets_numbers(server: MariaDB, tmp_path: Path) -> None:
    between = {"framing": "int32"}
    with (
        Framegate(tmp_path / "back", config_of(server.address, between, MYSQL)) as back,
        Framegate(tmp_path / "front", config_of(endpoint_of(back), MYSQL, between)) as front,
    ):
        with front.connect("sql") as client:
            size = int.from_bytes(read_exactly(client, 4)[:3], "little")
            assert read_exactly(client, size)[:1] == b"\x0a", "the greeting's number is 0, and so is what int32 makes of it"
        done = sql(front.address("sql"), "SELECT 1;")
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"ERROR" in done.stderr, "the server wants the packet of number 1"
