"""Ctrl-C and SIGTERM as exceptions; whatever ends a demo is one line and an exit code."""

import os
import signal
import threading
from collections.abc import Callable

import grpc
import pytest

from framegate.control.demo.processes import ChildError
from framegate.control.demo.signals import TerminatedError, exit_code, signals_ignored
from framegate.control.demo.workspace import WorkspaceError


def failing(error: BaseException) -> Callable[[], int]:
    def perform() -> int:
        raise error

    return perform


def test_whatever_ends_it_is_one_line_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, said in (
        (ValueError("of the broker:\nno jars"), 1, "of the broker: no jars"),
        (ChildError("proxy ended: no"), 1, "proxy ended: no"),
        (grpc.RpcError("no answer"), 1, "no answer"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (WorkspaceError("/x holds something else"), 2, "/x holds something else"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (TerminatedError(), 143, "terminated"),
    ):
        assert exit_code(failing(error), ValueError) == code
        assert capsys.readouterr().err == f"framegate demo: {said}\n"
    assert exit_code(lambda: 7) == 7
    with pytest.raises(TypeError):
        exit_code(failing(TypeError()))


def test_sigterm_ends_it_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def perform() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert exit_code(perform) == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_cleaning_up_is_not_disturbed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_ignored():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: exit_code(lambda: seen.append(signal.getsignal(signal.SIGTERM)) or 0))
    thread.start()
    thread.join()
    assert seen == [before]
