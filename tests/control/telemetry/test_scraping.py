"""Metrics scraped by Prometheus: what listens, and what answers."""

import socket
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.telemetry import exposition, scraping
from framegate.control.telemetry.fold import Fold, Source
from framegate.control.telemetry.instruments import ProcessMetrics
from framegate.control.telemetry.scraping import Calls, PrometheusReader, ScrapeListener
from tests.fakes.plane import FakePlane
from tests.fakes.upstream import read_to_end
from tests.fakes.waiting import until


def scraped(plane: FakePlane, fold: Fold) -> PrometheusReader:
    reader = PrometheusReader(fold, ProcessMetrics(plane), Calls(), lambda: {"service.name": "x"})
    reader.listen(ScrapeListener("127.0.0.1:0"))
    return reader


def get(address: str, path: str = "/metrics", accept: str = "*/*") -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
        answer = read_to_end(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def test_the_gauges_of_clients_are_those_of_the_moment(plane: FakePlane) -> None:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    reader = scraped(plane, Fold(plane, [lambda: found]))
    for name in ('ann "x"\\', "bob"):
        found.clear()
        found["framegate.client.io", (("framegate.listener", "l"), ("framegate.principal", name))] = 2.5
        shown = name.replace("\\", "\\\\").replace('"', '\\"')
        lines = [line for line in get(str(reader.address))[1].splitlines() if line.startswith("framegate_client_io")]
        assert lines == [f'framegate_client_io_bytes_per_second{{framegate_listener="l",framegate_principal="{shown}"}} 2.5']
    reader.shutdown()


def test_connections_that_ask_for_nothing_are_counted(plane: FakePlane) -> None:
    sources: list[Source] = []
    fold = Fold(plane, sources)
    reader = scraped(plane, fold)
    sources.append(lambda: {("framegate.scrape.refused", ()): reader.refused})
    assert "framegate_scrape_refused_total 0.0" in get(str(reader.address))[1]
    host, _, port = str(reader.address).rpartition(":")
    socket.create_connection((host, int(port)), 10).close()
    until(lambda: "framegate_scrape_refused_total 1.0" in get(str(reader.address))[1])
    reader.shutdown()


def test_a_server_that_fails_is_logged_and_tried_again(plane: FakePlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    sound = exposition.Scrapes

    def broken(*arguments: Any) -> exposition.Scrapes:
        monkeypatch.setattr(exposition, "Scrapes", sound)
        raise OSError("Too many open files")

    monkeypatch.setattr(exposition, "Scrapes", broken)
    monkeypatch.setattr(scraping, "_PAUSE_S", 0.0)
    reader = scraped(plane, Fold(plane))
    assert get(str(reader.address))[0].startswith("HTTP/1.0 200")
    assert "Too many open files" in caplog.text
    reader.shutdown()


def test_scrapes_move_to_an_overlapping_address_while_they_come(plane: FakePlane) -> None:
    reader = scraped(plane, Fold(plane))
    port, answers = str(reader.address).rpartition(":")[2], []
    for host in ("0.0.0.0", "127.0.0.1", "[::]", "127.0.0.1", "127.0.0.2", "127.0.0.1"):
        former = reader.listener
        assert former is not None
        ScrapeListener(f"{host}:{port}", former).close()  # it was staged, and is taken back
        staged = ScrapeListener(f"{host}:{port}", former)
        answers.append(get(str(reader.address))[0])
        reader.listen(staged)
        until(lambda former=former: former._socket.fileno() < 0)
        answers.append(get(str(reader.address))[0])
        with pytest.raises(StartError, match="in use"):
            ScrapeListener(f"{host}:{port}")
    reader.shutdown()
    assert [answer for answer in answers if not answer.startswith("HTTP/1.0 200")] == []


def test_an_address_of_somebody_else_cannot_be_bound() -> None:
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        ScrapeListener("192.0.2.1:9464")
