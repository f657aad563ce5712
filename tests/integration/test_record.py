"""The record proves its completeness: whatever is killed, whenever, the log never says that it is complete when a frame is missing.

25 kills, of kinds drawn once and for all. More of them, drawn anew from ``FRAMEGATE_SEED`` (default 1), with ``FRAMEGATE_KILLS=200``; the table
of what was found is printed at the end (``-s``).
"""

import itertools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kills import Campaign, Kill, table
from tests.fakes.small_disk import tiny_disk

SUITE = [
    ("all", 11, ["flood", "idle", "group", "two", "in order"]),
    ("cut", 12, ["flood", "newborn", "settling", "idle", "flood"]),
    ("shares", 13, ["control", "flood", "orphans", "two"]),
    ("mute", 14, ["standstill", "flood"]),
    ("small", 16, ["flood", "group"]),
    ("disk", 15, ["full for a while", "full at kill", "full at exit", "full group", "idle"]),
]  # Rules, seed, kinds. Together 25 kills.
SHORT = ("small",)  # Rules that `make test` runs, too
WEIGHTS = {"flood": 6, "idle": 3, "group": 3, "two": 2, "newborn": 2, "settling": 2, "control": 1, "orphans": 1, "standstill": 1, "in order": 1}
FULL_WEIGHTS = {"full for a while": 2, "full at kill": 4, "full group": 2, "full at exit": 1, "flood": 2, "idle": 1}
TWICE = ("two", "newborn", "settling")


def drawn(kills: int, seed: int) -> list[tuple[str, int, list[str]]]:
    """Campaigns of so many kills, as they are in ``SUITE``."""
    rng = random.Random(seed)
    found = []
    left = kills
    for rules in itertools.cycle(["all", "cut", "disk", "shares", "mute", "small"]):
        weights = FULL_WEIGHTS if rules == "disk" else WEIGHTS
        kinds: list[str] = []
        while left > 0 and len(kinds) < 5:
            (kind,) = rng.choices(list(weights), list(weights.values()))
            kinds.append(kind)
            left -= 0 if kind in ("in order", "full at exit") else 2 if kind in TWICE else 1
        found.append((rules, rng.randrange(1 << 30), kinds))
        if left <= 0:
            return found
    return found


KILLS = int(os.environ.get("FRAMEGATE_KILLS", "0"))
CAMPAIGNS = drawn(KILLS, int(os.environ.get("FRAMEGATE_SEED", "1"))) if KILLS else SUITE


@pytest.fixture(scope="module")
def kills() -> Iterator[list[Kill]]:
    """What happened; the table is printed at the end."""
    happened: list[Kill] = []
    yield happened
    sys.stdout.write(f"\n{table(happened)}\n")


@pytest.mark.slow  # each starts a proxy two times or more, and waits for the heartbeat's limit of 10 s at most once
@pytest.mark.timeout(600 if KILLS else 120)
@pytest.mark.parametrize(
    ("rules", "seed", "kinds"),
    [pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=() if row[0] in SHORT else pytest.mark.extended) for row in CAMPAIGNS],
)
def test_whatever_is_killed_the_log_says_what_it_lacks(tmp_path: Path, kills: list[Kill], rules: str, seed: int, kinds: list[str]) -> None:
    print(f"rules {rules}, seed {seed}: {', '.join(kinds)}")
    directory = tmp_path / "tap"
    if rules != "disk":
        budget = {"budget": "1MiB", "segment_size": "64KiB"} if rules == "small" else {}
        run(Campaign(tmp_path / "framegate", directory, seed, rules, **budget), kinds, kills)
        return
    with tiny_disk(directory, 512) as mounted:  # what is flooded must not fill it by itself
        if not mounted:
            pytest.skip("no disk can be mounted here")
        run(Campaign(tmp_path / "framegate", directory, seed, disk=True), kinds, kills)


def run(campaign: Campaign, kinds: list[str], kills: list[Kill]) -> None:
    try:
        for kind in kinds:
            campaign.kill(kind)
        campaign.judge()
    finally:
        campaign.close()
    kills += campaign.kills
    for kill in campaign.kills:
        print(kill)
        if kill.kind in ("control", "orphans"):
            assert not any(account.unknown for account in kill.accounts.values()), "they ended in order"
        if kill.kind == "idle" and not campaign.retention:
            states = {state for account in kill.accounts.values() for state in account.states}
            assert states <= {"complete", "lost"}, "what a full disk or a full queue lost is known exactly"
            assert all(account.missing <= account.exact and not account.at_most for account in kill.accounts.values())


def test_the_suite_has_its_kills() -> None:
    assert sum(2 if kind in TWICE else kind not in ("in order", "full at exit") for _, _, kinds in SUITE for kind in kinds) == 25
