"""The broker runner without a broker: the cache's place, what is missing, settings. A real one runs in tests/integration/test_kafka.py."""

from pathlib import Path

import pytest

from control.demo import broker


def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert broker.cache_directory() == tmp_path / "framegate" / f"kafka-{broker.VERSION}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert broker.cache_directory() == tmp_path / ".cache" / "framegate" / f"kafka-{broker.VERSION}"


def test_what_is_missing_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert [text.split()[0] for text in broker.missing_tools()] == ["Java", "Maven"]
    with pytest.raises(broker.BrokerError, match="needs Java 17"):
        broker.prepare()
    assert not (tmp_path / "cache").exists()


def test_a_full_cache_needs_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    broker.cache_directory().mkdir(parents=True)
    (broker.cache_directory() / "complete").touch()
    assert [text.split()[0] for text in broker.missing_tools()] == ["Java"]


def test_each_broker_has_ports_of_its_own(tmp_path: Path) -> None:
    plain = broker.Broker(tmp_path / "a")
    with_users = broker.Broker(tmp_path / "b", {"alice": "secret"})
    assert len(set(plain.ports.values())) == len(plain.ports)
    assert set(with_users.ports) - set(plain.ports) == {"SASL"}
    assert plain.internal_address == f"127.0.0.1:{plain.ports['INTERNAL']}"
