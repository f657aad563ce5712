"""A group with a memory limit kills what goes beyond it and leaves alone what does not: without that, a proxy that survives in one says nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cgroup import Group, NoGroupError, limited

MIB = 1 << 20


@pytest.fixture
def group() -> Iterator[Group]:
    try:
        with limited(64 * MIB) as found:
            yield found
    except NoGroupError as why:
        pytest.skip(str(why))


def take(group: Group, size: int) -> int:
    """The exit code of a program that writes to so many bytes."""
    words = group.command([sys.executable, "-c", f"b = bytearray({size}); b[::4096] = b'x' * len(b[::4096])"])
    return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode


@pytest.mark.slow
def test_who_takes_more_than_the_limit_is_killed(group: Group) -> None:
    assert (take(group, 128 * MIB), group.killed()) == (-9, 1)


@pytest.mark.slow
def test_who_stays_below_it_is_not(group: Group) -> None:
    assert (take(group, 16 * MIB), group.killed()) == (0, 0)
    assert group.sockets() == 0
    if group.highest():
        assert 16 * MIB < group.highest() < 64 * MIB


def test_where_there_is_no_controller_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoGroupError, match="has no memory controller"), limited(MIB, root=tmp_path):
        pytest.fail("there is no group")


def test_where_the_controller_is_not_given_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(NoGroupError, match="was given no memory controller"), limited(MIB, root=tmp_path):
        pytest.fail("there is no group")
