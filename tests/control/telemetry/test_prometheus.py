"""What a scrape gets, and how the listener behaves."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from framegate.control.errors import StartError
from framegate.control.telemetry import exposition, prometheus
from framegate.control.telemetry.fold import Fold, Source
from framegate.control.telemetry.instruments import observe_fold
from framegate.control.telemetry.prometheus import PrometheusReader
from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    plane = FakePlane(fake_config("unix:unused", None))
    yield plane
    plane.close()


def get(address: str, path: str = "/metrics", accept: str = "*/*") -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def test_labels_are_escaped_and_every_family_has_help(plane: FakePlane) -> None:
    reader = PrometheusReader(plane, Fold(plane), "127.0.0.1:0", {})
    provider = MeterProvider([reader], shutdown_on_exit=False)
    provider.get_meter("x").create_counter("odd.name", "{thing}", 'says "hi"').add(3, {"a.b": 'quote " and \\ and \n'})
    _, text = get(reader.address)
    reader.shutdown()
    assert 'odd_name_total{a_b="quote \\" and \\\\ and \\n"} 3.0' in text
    assert '# HELP odd_name_total says "hi"' in text
    assert "target_info{" in text


def test_its_end_does_not_wait_for_a_client_that_says_nothing(plane: FakePlane) -> None:
    reader = PrometheusReader(plane, Fold(plane), "127.0.0.1:0", {})
    host, _, port = reader.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10):
        started = time.monotonic()
        reader.shutdown()
        assert time.monotonic() - started < 5
    with pytest.raises(OSError, match="refused"):
        get(reader.address)


def test_connections_that_ask_for_nothing_are_counted(plane: FakePlane) -> None:
    sources: list[Source] = []
    fold = Fold(plane, sources)
    reader = PrometheusReader(plane, fold, "127.0.0.1:0", {})
    sources.append(reader.measurements)
    observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("x"), fold)
    assert "framegate_scrape_refused_total 0.0" in get(reader.address)[1]
    host, _, port = reader.address.rpartition(":")
    socket.create_connection((host, int(port)), 10).close()
    deadline = time.monotonic() + 10
    while "framegate_scrape_refused_total 1.0" not in get(reader.address)[1]:
        assert time.monotonic() < deadline
    reader.shutdown()


def test_a_server_that_fails_is_logged_and_tried_again(plane: FakePlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    sound = exposition.Scrapes

    def broken(*arguments: Any) -> exposition.Scrapes:
        monkeypatch.setattr(exposition, "Scrapes", sound)
        raise OSError("Too many open files")

    monkeypatch.setattr(exposition, "Scrapes", broken)
    monkeypatch.setattr(prometheus, "_PAUSE_S", 0.0)
    reader = PrometheusReader(plane, Fold(plane), "127.0.0.1:0", {})
    MeterProvider([reader], shutdown_on_exit=False)
    assert get(reader.address)[0].startswith("HTTP/1.0 200")
    assert "Too many open files" in caplog.text
    reader.shutdown()


def test_an_address_of_somebody_else_cannot_be_bound(plane: FakePlane) -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        PrometheusReader(plane, Fold(plane), "192.0.2.1:9464", {})
