"""Ctrl-C and SIGTERM, as exceptions."""

import os
import signal
import threading

import pytest

from control.demo.signals import TerminatedError, signals_ignored, sigterm_raises


def test_sigterm_is_an_exception_for_the_length_of_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError), sigterm_raises():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_cleaning_up_is_not_disturbed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_ignored():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_changes_nothing() -> None:
    seen: list[object] = []

    def body() -> None:
        with sigterm_raises(), signals_ignored():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
