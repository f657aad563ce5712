"""framegate.proxy.network.faults: counted by place, the first of each kept as text until it is taken."""

import gc
import weakref

import pytest

from framegate.proxy.cells import FAULT_PLACES
from framegate.proxy.network.faults import Faults


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as same:
        return same


def test_faults_are_counted_by_place_and_the_first_of_each_is_told_once() -> None:
    faults = Faults()
    assert (faults.untold, faults.take(), faults.total) == (False, [], 0)
    faults.note("timer", caught(RuntimeError("first")))
    faults.note("timer", caught(RuntimeError("second")))
    faults.note("channel", ValueError("never raised"))
    assert faults.untold
    timer, channel = faults.take()
    assert timer[:3] == ("timer", 2, "RuntimeError: first")
    assert timer.at.startswith("test_faults.py:")
    assert channel == ("channel", 1, "ValueError: never raised", "")
    assert (faults.untold, faults.take(), faults.total) == (False, [], 3)
    assert [int(count) for count in faults.counts] == [{"timer": 2, "channel": 1}.get(place, 0) for place in FAULT_PLACES]


def test_what_was_at_work_is_not_kept() -> None:
    class Thing:
        pass

    def work() -> "weakref.ref[Thing]":
        thing = Thing()
        try:
            raise RuntimeError
        except RuntimeError as error:
            faults.note("loop", error)
        return weakref.ref(thing)

    faults = Faults()
    gone = work()
    gc.collect()
    assert gone() is None


def test_an_error_that_cannot_be_printed_is_counted() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    faults = Faults()
    faults.note("tap", MuteError())
    assert faults.take()[0].error == "MuteError"


def test_a_place_is_one_of_the_list() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        Faults().note("nowhere", RuntimeError())
