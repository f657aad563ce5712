"""``framegate tap`` with URLs, and ``tap ship``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.proxy.tap.consumer import claim_consumer
from tests.fakes.kept_tap import START, in_segments
from tests.fakes.shipped import MINUTE_NS, ShippedTap
from tests.fakes.tap_log import FakeProcessor


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["tap", *words])


def data(*words: str) -> Any:
    return json.loads(run(*words, "--output", "json").stdout)


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[ShippedTap]:
    (tmp_path / "tap").mkdir()
    made = ShippedTap(tmp_path / "tap")
    yield made
    made.leave()


def ended(edge: ShippedTap) -> FakeProcessor:
    processor = in_segments(edge.tap, 3)
    edge.tap.end(processor)
    edge.leave()
    return processor


def test_ship_sends_a_log_once_and_the_commands_read_it_from_there(edge: ShippedTap) -> None:
    ended(edge)
    shipped = run("ship", str(edge.folder), edge.url)
    assert (shipped.exit_code, shipped.stderr.split(" to ")[0]) == (0, "framegate: 4 segments sent")
    assert "0 segments sent" in run("ship", str(edge.folder), f"{edge.url}/").stderr
    head, row = run("ls", edge.url).stdout.splitlines()
    assert head.split()[0] == "NODE"
    assert row.split()[:2] == ["edge", "stopped"]
    assert run("ls", edge.root).stdout == run("ls", str(edge.folder)).stdout.replace("ship 0 B", "-")
    assert run("cat", edge.url).stdout == run("cat", edge.root).stdout == run("cat", str(edge.folder)).stdout
    verified = run("verify", edge.url)
    assert (verified.exit_code, verified.stdout.splitlines()[-1]) == (0, "complete: 1 node; minutes: 3 complete")
    assert data("verify", edge.url)["windows"] == data("verify", str(edge.folder))["windows"]


def test_json_of_a_fleet(edge: ShippedTap) -> None:
    edge.now_ns = START + 10 * MINUTE_NS
    edge.restart()
    stream = in_segments(edge.tap, 3).stream
    edge.look({stream: (edge.now_ns, 0)})
    (node,) = data("ls", edge.url)
    assert (node["name"], node["state"], node["written"], node["until_time"]) == ("edge", "silent", 1, "2023-11-14T22:15:00.000000Z")
    found = data("verify", edge.url)
    assert (found["complete"], [minute["state"] for minute in found["minutes"]]) == (False, ["complete", "open"])
    assert found["minutes"][0]["minute"] == "2023-11-14T22:13:00.000000Z"


def test_a_silent_node_is_named_and_the_exit_code_is_1(edge: ShippedTap) -> None:
    in_segments(edge.tap, 3)
    edge.look()
    result = run("verify", edge.url)
    assert result.exit_code == 1
    assert "silent: edge was heard" in result.stdout
    assert result.stdout.splitlines()[-1] == "not complete: 1 node; minutes: 2 open"
    gone = run("verify", edge.url, "--gone", "edge")
    assert (gone.exit_code, "silent" in gone.stdout, "edge is gone" in gone.stdout) == (1, False, True)
    assert gone.stdout.splitlines()[-1] == "not complete: 1 node; minutes: 2 lost"
    assert f"--gone edgy: {edge.url} has no such node" in run("verify", edge.url, "--gone", "edgy").stderr


def test_with_a_time_only_its_minutes_and_the_nodes_that_were_not_heard_in_it_count(edge: ShippedTap) -> None:
    edge.now_ns = START + 3 * MINUTE_NS
    edge.restart()
    stream = in_segments(edge.tap, 4).stream
    edge.look({stream: (edge.now_ns, 0)})
    within = ("--since", "2023-11-14T22:14:00Z", "--until", "2023-11-14T22:15:00Z")
    for place in (edge.url, edge.root):
        found = run("verify", place, *within)
        assert (found.exit_code, found.stdout.splitlines()[-1]) == (0, "complete: 1 node; minutes: 1 complete")
    assert run("verify", edge.url, *within[:2]).exit_code == 1, "it is silent since"
    assert [row["window"] for row in data("verify", str(edge.folder), *within)["windows"]] == ["2023-11-14T22:14:00.000000Z"]


def test_lost_frames_have_a_number_and_a_reason(edge: ShippedTap) -> None:
    edge.die(in_segments(edge.tap, 2), 7)
    edge.leave()
    edge.look()
    result = run("verify", edge.url)
    (row,) = [line.split() for line in result.stdout.splitlines() if " lost " in line]
    assert (result.exit_code, row[2:7]) == (1, ["lost", "1", "0", "7", "processor_died"])


def test_two_at_once_and_a_directory_of_several_nodes(edge: ShippedTap, tmp_path: Path) -> None:
    ended(edge)
    with claim_consumer(str(edge.folder), "ship"):
        assert run("ship", str(edge.folder), edge.url).exit_code == 4
    FakeProcessor(edge.folder, node="other").block([b"x"])
    result = run("ship", str(edge.folder), edge.url)
    assert (result.exit_code, "streams of edge, other" in result.stderr) == (2, True)
    assert run("ship", str(edge.folder), edge.url, "--node", "both").exit_code == 0
    assert (tmp_path / "tap.store/both/_ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("verify", "ftp://x/y"), 2, "must begin with"),
        (("verify", "file:///nowhere/at/all"), 1, "cannot be read"),
        (("ls", "file:///nowhere/at/all"), 1, "cannot be read"),
        (("cat", "s3://user:word@bucket"), 2, "credentials are taken from the environment"),
        (("follow", "s3://bucket"), 2, "is a URL"),
        (("verify", "{store}", "--accept", "so be it"), 2, "accepted in a directory"),
        (("ls", "{empty}"), 1, "has no nodes"),
        (("verify", "{empty}"), 1, "has no nodes"),
        (("cat", "{store}", "--stream", "nothing"), 3, "has no stream nothing"),
        (("ship", "{folder}", "/not/a/url"), 2, "must begin with"),
    ],
)
def test_wrong_use(edge: ShippedTap, tmp_path: Path, words: tuple[str, ...], code: int, text: str) -> None:
    (tmp_path / "empty").mkdir()
    edge.look()
    places = {"{store}": edge.url, "{empty}": f"file://{tmp_path}/empty", "{folder}": str(edge.folder)}
    result = run(*(places.get(word, word) for word in words))
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
