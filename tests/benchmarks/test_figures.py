"""What the figures make of what was measured: met, missed, or failed, and beside whom."""

import io

import figures
import handlers
import hostages
import pressure
import pytest
import reframing
import sizing
from fetching import Fetched
from figures import Figure
from measure import Round
from rich.console import Console
from shapes import SHAPES, Load

from control.configuration.capacity import memory_warning
from control.configuration.load import validate

MIB = 1 << 20
MIXED = {"framegate": 1.0, "envoy": 3.0, "haproxy": 2.0, "c-relay": 0.5}


def shown(*rows: Figure) -> str:
    out = io.StringIO()
    figures.show(Console(file=out, width=200), {"answers": figures.add({"rows": []}, rows), "memory": {"failed": "not at all"}})
    return out.getvalue()


def test_the_best_peer_is_the_lowest_and_no_reference() -> None:
    figure = Figure("x", "≤ 1", 1.0, "s", figures.beside_peers(MIXED), met=True)
    assert figure.peers == {"haproxy": 2.0, "envoy": 3.0}
    assert figure.best == ("haproxy", 2.0)
    assert Figure("x", "≤ 1", 1.0, "s", figures.beside_peers({"nginx": float("inf")}), met=True).best is None


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (Figure("x", "≤ 4 MiB", 2.0, "MiB", {"haproxy": 4.0}, met=True), ("2.00 MiB", "haproxy 4.00", "0.50", "met")),
        (Figure("x", "≤ 4 MiB", 8.0, "MiB", {"haproxy": 0.0}, met=False, note="why"), ("8.00 MiB", "haproxy 0.000", "MISSED", "x: why")),
        (Figure("x", "all", None, "s", {}, met=False, note="closed after 3 answers"), ("failed", "MISSED", "x: closed after 3 answers")),
    ],
)
def test_a_figure_is_one_row_and_a_note(figure: Figure, words: tuple[str, ...]) -> None:
    text = shown(figure)
    assert [word for word in words if word not in text] == []


def test_a_run_without_figures_shows_nothing() -> None:
    assert shown() == ""


def fetched(*, missing: int = 0, p99_ms: float = 1.0, most_ms: float = 2.0) -> Fetched:
    return Fetched("framegate-64m", 100, missing, 1.0, 1.0, 0.5, 0, 0, 0, 500.0, p99_ms * 1000, most_ms * 1000, 1.0)


@pytest.mark.parametrize(
    ("good", "failed", "met"),
    [
        (fetched(), "", True),
        (fetched(p99_ms=5.1), "", False),
        (fetched(missing=1), "", False),
        (None, "connection 3: closed by the other side after 4 answers", False),
    ],
    ids=["in time", "too late", "one is missing", "closed"],
)
def test_a_good_client_among_hostages_is_judged(good: Fetched | None, failed: str, met: bool) -> None:
    mine = hostages.Besieged("framegate-64m", "pool", good, failed, 1.0, hostages.Hostages())
    peer = hostages.Besieged("haproxy", "pool", fetched(p99_ms=3.0), "", 1.0, hostages.Hostages())
    (figure,) = hostages._judged(hostages.SIEGES[0], [mine, peer])
    assert (figure.met, figure.peers, figure.value is None) == (met, {"haproxy": 3.0}, good is None)
    assert bool(figure.note) == (bool(failed) or (good is not None and good.missing > 0))


def passed(name: str, seconds: float, failed: str = "", resident: float = 50.0) -> pressure.Passed:
    return pressure.Passed(name, seconds, failed, resident)


@pytest.mark.parametrize(
    ("tight", "met"),
    [
        ([passed("framegate-32m", 2.1), passed("framegate-32m", 9.0), passed("framegate-32m", 2.2)], [True, True]),
        ([passed("framegate-32m", 2.3)], [False, True]),
        ([passed("framegate-32m", 0.0, "closed")], [False, True]),
        ([passed("framegate-32m", 2.0, resident=60.4)], [True, False]),
    ],
    ids=["as fast", "too slow", "died", "too much memory"],
)
def test_a_small_pool_is_judged_beside_a_large_one(tight: list[pressure.Passed], met: list[bool]) -> None:
    wide = [passed("framegate-1g", 2.0), passed("framegate-1g", 2.0)]
    found = pressure._judged_circle([passed("haproxy", 1.5), *tight, *wide])
    assert [figure.met for figure in found] == met
    assert found[0].peers == {"haproxy": 1.5}


def test_a_bound_is_the_pool_the_largest_frame_and_a_read_with_a_quarter_more() -> None:
    assert pressure.small_pool_bound("framegate-slow") == (32 + 2 + 0.25) * 1.25


def tried(*, killed: int = 0, resident: int = 300, sockets: int = 400, counted: bool = False, idle: tuple[str, ...] = ()) -> sizing.Tried:
    return sizing.Tried(400 * MIB, 340 * MIB, {}, resident * MIB, 400 * MIB, sockets * MIB, counted, killed, {}, list(idle))


@pytest.mark.parametrize(
    ("run", "met"),
    [
        (tried(), True),
        (tried(killed=1), False),
        (tried(idle=("answers of 100 MB",)), False),
        (tried(resident=600), False),
        (tried(counted=True), False),
        (tried(counted=True, sockets=90), True),
    ],
    ids=["none killed", "one killed", "no work", "too much", "v2: too much", "v2: none killed"],
)
def test_a_container_is_judged_by_who_was_killed_and_by_what_it_held(run: sizing.Tried, met: bool) -> None:
    assert sizing._judged(run).met == met


def test_a_container_is_the_smallest_that_check_does_not_warn_about() -> None:
    listener = {"name": "a", "address": "127.0.0.1:0", "upstream": "u", "max_receive_size": "1MiB", "limits": {"connections": 1}}
    upstream = {"name": "u", "endpoints": ["127.0.0.1:1"]}
    config = validate({"node": "n", "memory_pool": {"size": "64MiB"}, "listeners": [listener], "upstreams": [upstream]})
    limit = sizing.container(config, 1)
    assert memory_warning(config, 1, limit) is None
    assert memory_warning(config, 1, limit - MIB) is not None


def rounds_of(**values: float) -> list[Round]:
    """By candidate: what a frame cost in µs, at a core always busy."""
    return [Round(name.replace("_", "-"), "plain", "100x64", 0, 0.0, int(1e6 / cost), 1.0, cost, 1.0, 1.0, 2.0, 3.0) for name, cost in values.items()]


@pytest.mark.parametrize(("cost", "met"), [(1.6, True), (1.61, False)])
def test_reframing_is_judged_beside_the_same_framing(cost: float, met: bool) -> None:
    (figure,) = reframing._judged(Load(SHAPES[1]), rounds_of(framegate=1.0, framegate_varint=cost), 1.6)
    assert (figure.value, figure.met) == (cost, met)
    assert reframing._judged(Load(SHAPES[0]), [], None) == []


@pytest.mark.parametrize(("mine", "met"), [(2.0, True), (2.5, False), (4.0, False)])
def test_a_handler_is_judged_by_the_faster_of_the_plain_servers(mine: float, met: bool) -> None:
    (figure,) = handlers._judged(Load(SHAPES[1]), rounds_of(asyncio=4.0, uvloop=2.0, uvloop_protocol=0.5, framegate_handler=mine))
    assert figure.met == met
    assert figure.value == pytest.approx(mine)
    assert figure.best is not None
    assert figure.best[0] == "uvloop"
