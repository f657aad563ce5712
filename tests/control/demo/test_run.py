"""The demo's beginning: what is missing is one line and exit code 2, before anything starts."""

from pathlib import Path

import pytest

from control.demo.broker import BrokerError
from control.demo.processes import ChildError
from control.demo.run import EXIT_MISSING, run
from control.demo.signals import TerminatedError


def test_without_java_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(directory=tmp_path / "demo") == EXIT_MISSING
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "Java 17" in captured.err
    assert not (tmp_path / "demo").exists()


def test_a_folder_in_use_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("control.demo.run._missing", lambda upstream: None)
    (tmp_path / "mine").touch()
    assert run(directory=tmp_path) == EXIT_MISSING
    assert "holds something else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BrokerError("Maven could not fetch\nKafka's jars"), 1, "Maven could not fetch Kafka's jars"),
        (ChildError("proxy ended: no"), 1, "proxy ended: no"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (TerminatedError(), 143, "terminated"),
    ],
)
def test_whatever_ends_it_is_one_line_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr("control.demo.run._missing", lambda upstream: None)
    monkeypatch.setattr("control.demo.kafka.perform", fail)
    assert run(upstream="kafka", directory=tmp_path / "demo") == code
    assert capsys.readouterr().err == f"framegate demo: {said}\n"


def test_kafka_asks_for_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("control.demo.run.broker.missing_tools", lambda: ["Maven (Debian: apt-get install maven)"])
    monkeypatch.setattr("control.demo.run.find_java", lambda: "/usr/bin/java")
    assert run(upstream="kafka", directory=tmp_path / "demo") == EXIT_MISSING
    assert "Maven" in capsys.readouterr().err
