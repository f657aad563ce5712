"""Parameter types: sizes and times with units, channel ids, addresses. Parsers are imported when they are needed."""

import os
import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

MAX_INT64: Final = 2**63 - 1  # the greatest number of the API
LEAST_HEAP: Final = 512 << 20  # Bytes; Spark refuses less than 450 MiB
T = TypeVar("T")


class Kind(click.ParamType[T]):
    """A parameter type that a function parses.

    Args:
        parse: makes the value of a text, or raises ValueError with what is wrong, after "{value!r} ".
    """

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: "str | T", param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _size(text: str) -> int:
    from framegate.control.configuration.units import parse_size

    return _bounded(parse_size, text)


def _duration_ms(text: str) -> int:
    from framegate.control.configuration.units import parse_duration_ms

    return _bounded(parse_duration_ms, text)


def _bounded(parse: Callable[[str], int], text: str) -> int:
    found = _described(parse, text)
    if found > MAX_INT64:
        raise ValueError("is too large")
    return found


def _described(parse: Callable[[str], T], text: str) -> T:
    """The result of a parser whose errors say what a text is."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"is {error}") from error


def _named(what: str) -> Kind[str]:
    """The name of something. An empty one, often from an unset shell variable, is refused: the API would read it as "all"."""

    def parse(text: str) -> str:
        if not text.strip():
            raise ValueError(f"is empty: write the name of {what}")
        return text

    return Kind("text", parse)


def _brokers(text: str) -> tuple[str, ...]:
    """Some brokers of a Kafka cluster, each once, in the form of Kafka's own ``bootstrap.servers``: ``kafka-1:9092,kafka-2:9092``."""
    from framegate.proxy.config.address import parse_address

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for part in found:
        try:
            if parse_address(part, unix=False).wildcard:
                raise ValueError("is no address of a broker")
        except ValueError as error:
            words = "write HOST:PORT, or several with commas between them, as in bootstrap.servers"
            raise ValueError(f"has {part!r}: {error}; {words}") from error
    return found


def _expiry(text: str) -> tuple[str, int]:
    """``10m`` is ``("ttl", milliseconds)``; ``2030-01-31T12:00:00Z`` is ``("instant", nanoseconds since 1970)``; ``never`` is ``("instant", 0)``.
    A ttl stays relative, because the server's clock decides.
    """
    from framegate.control.configuration.units import parse_duration_ms, parse_instant_ns

    if text == "never":
        return "instant", 0
    try:
        left = parse_duration_ms(text)
    except ValueError:
        left = -1
    return ("ttl", left) if left > 0 else ("instant", _described(lambda value: parse_instant_ns(value, 0), text))


def _java_heap(text: str) -> str:
    """The heap of the Java virtual machine that runs Spark: a size, also as Java writes it (``1g``, ``512m``), in mebibytes in Java's form."""
    from framegate.control.configuration.units import parse_size

    try:
        size = parse_size(re.sub(r"(?i)(?<=\d)([kmgt])$", r"\1iB", text))
    except ValueError:
        raise ValueError("is not a size: write a number with MiB or GiB, or Java's 512m, 1g") from None
    if size < LEAST_HEAP:
        raise ValueError("is too small: Spark needs 512m")
    return f"{size >> 20}m"


def _moment_ns(text: str) -> int:
    """A time such as ``2027-01-15T08:00:00Z``, or ``10m`` for ten minutes ago, in nanoseconds since 1970."""
    import datetime

    from framegate.control.configuration.units import parse_duration_ms

    try:
        return time.time_ns() - parse_duration_ms(text) * 1_000_000
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a time: write 2027-01-15T08:00:00Z, or 10m for ten minutes ago") from None
    if moment.tzinfo is None:
        raise ValueError(f"has no time zone: write {text}Z for UTC")
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1) * 1000


def _channel(text: str) -> str:
    """``slot-generation-counter``."""
    from framegate.proxy.network.connection_id import parse_connection_id

    try:
        parse_connection_id(text)
    except ValueError:
        raise ValueError("is not a channel id such as 0-1-42; `framegate channels list` shows the ids") from None
    return text


def _api(text: str) -> int:
    """The key of a Kafka API, by its name or key."""
    from framegate.proxy.config.selection import api_key

    return _described(api_key, text)


def _address(text: str) -> str:
    """``unix:PATH``, or ``host:port`` of ``admin.tcp`` or of a forwarded socket."""
    from framegate.proxy.config.address import parse_address

    if not text.strip():
        raise ValueError("is empty: write unix:PATH")
    if "://" in text and not text.startswith("unix:"):
        raise ValueError("has a scheme: write unix:PATH or host:port")
    if not text.startswith("unix:") and ("/" in text or os.path.exists(text)):
        raise ValueError(f"is a path: write unix:{text}")
    try:
        parse_address(text)
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from error
    return text


ADDRESS = Kind("address", _address)
API = Kind("api", _api)
BOOTSTRAP = Kind("host:port,…", _brokers)
SIZE = Kind("size", _size)
DURATION = Kind("duration", _duration_ms)
EXPIRY = Kind("time", _expiry)
JAVA_HEAP = Kind("size", _java_heap)
CHANNEL = Kind("id", _channel)
LISTENER = _named("a listener")
UPSTREAM = _named("an upstream")
MOMENT = Kind("time", _moment_ns)
