"""One export over HTTP: what each status means, answers that are none, and those that do not end."""

import http.server
import time
from collections.abc import Callable

import pytest

from tests.fakes.carrying import once
from tests.fakes.receivers import HttpReceiver

Handler = http.server.BaseHTTPRequestHandler


def http_status(status: int, **headers: str) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.end_headers()

    return answer


def raw(data: bytes, forever: bytes = b"") -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.wfile.write(data)
        while forever:
            try:
                handler.wfile.write(forever)
            except OSError:
                break
        handler.close_connection = True

    return answer


@pytest.mark.parametrize(
    ("answer", "end", "again", "pause_s"),
    [
        (http_status(429, Retry_After="3"), "unavailable", True, 3.0),
        (http_status(503, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), "unavailable", True, None),
        (http_status(502), "unavailable", True, None),
        (http_status(500), "other", False, None),
        (http_status(501), "other", False, None),
        (http_status(400), "refused", False, None),
        (http_status(401), "refused", False, None),
        (http_status(307, Location="http://127.0.0.1:1/"), "refused", False, None),
    ],
)
def test_each_status_of_http_has_its_end(answer: Callable[[Handler], None], end: str, again: bool, pause_s: float | None) -> None:
    with HttpReceiver(answer) as receiver:
        outcome = once(f"{receiver.endpoint}+http")
    assert (outcome.end, outcome.again, outcome.pause_s) == (end, again, pause_s)


@pytest.mark.parametrize(
    ("data", "forever"),
    [
        (b"SMTP ready\r\n", b""),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"\0" * 65_536),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n", b"\0" * 65_536),
        (b"", b"x" * 65_536),
    ],
)
def test_an_answer_that_is_none_or_has_no_end_costs_a_bound(data: bytes, forever: bytes) -> None:
    with HttpReceiver(raw(data, forever)) as receiver:
        outcome = once(f"{receiver.endpoint}+http")
    assert (outcome.end, outcome.again, len(outcome.answer)) == ("other", False, 0)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
def test_a_collector_that_ends_amid_an_exchange_is_asked_again(data: bytes) -> None:
    with HttpReceiver(raw(data)) as receiver:
        outcome = once(f"{receiver.endpoint}+http")
    assert (outcome.end, outcome.again) == ("unavailable", True)


def test_a_collector_that_sends_a_byte_now_and_then_is_late_all_the_same() -> None:
    def answer(handler: Handler) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100:
            try:
                handler.wfile.write(bytes([byte]))
            except OSError:
                return
            time.sleep(0.02)

    with HttpReceiver(answer) as receiver:
        started = time.monotonic()
        outcome = once(f"{receiver.endpoint}+http", 0.2)
    assert (outcome.end, outcome.again) == ("timeout", True)
    assert time.monotonic() - started < 1.5
