"""Parameter types: sizes and times with units, channel ids, addresses. Parsers are imported when they are needed."""

import os
import re
import time
from typing import Final

import click

__all__ = ["ADDRESS", "BOOTSTRAP", "CHANNEL", "DURATION", "JAVA_HEAP", "LISTENER", "MAX_INT64", "MOMENT", "SIZE", "UPSTREAM", "Expiry"]

MAX_INT64: Final = 2**63 - 1
"""The greatest number of the API."""
LEAST_HEAP: Final = 512 << 20
"""Bytes; Spark refuses less than 450 MiB."""


class Measure(click.ParamType[int]):
    """A size such as ``1MiB``, ``64KB`` or ``4096``, in bytes, or a duration such as ``250ms``, ``30s`` or ``10m``, in milliseconds.

    Args:
        name: ``size`` or ``duration``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes or milliseconds; a number is returned as it is."""
        if isinstance(value, int):
            return value
        from framegate.control.configuration.units import parse_duration_ms, parse_size

        try:
            found = parse_size(value) if self.name == "size" else parse_duration_ms(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)
        if found > MAX_INT64:
            self.fail(f"{value!r} is too large", param, ctx)
        return found


class Name(click.ParamType[str]):
    """The name of something.

    Args:
        what: the kind of thing, with its article, for error messages.
    """

    name = "text"

    def __init__(self, what: str) -> None:
        self._what = what

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text. An empty one, often from an unset shell variable, is refused: the API would read it as "all"."""
        if not value.strip():
            self.fail(f"is empty: write the name of {self._what}", param, ctx)
        return value


class Bootstrap(click.ParamType[tuple[str, ...]]):
    """Some brokers of a Kafka cluster, in the form of Kafka's own ``bootstrap.servers``: ``kafka-1:9092,kafka-2:9092``."""

    name = "host:port,…"

    def convert(self, value: "str | tuple[str, ...]", param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Each address once."""
        if isinstance(value, tuple):
            return value
        from framegate.proxy.config.address import parse_address

        found = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
        for part in found:
            try:
                if parse_address(part, unix=False).wildcard:
                    raise ValueError("is no address of a broker")
            except ValueError as error:
                self.fail(f"{part!r}: {error}; write HOST:PORT, or several with commas between them, as in bootstrap.servers", param, ctx)
        return found


class Expiry(click.ParamType[tuple[str, int]]):
    """An expiry: ``10m`` is ``("ttl", milliseconds)``; ``2030-01-31T12:00:00Z`` is ``("instant", nanoseconds since 1970)``; ``never`` is
    ``("instant", 0)``. A ttl stays relative, because the server's clock decides.
    """

    name = "time"

    def convert(self, value: "str | tuple[str, int]", param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Kind and number."""
        if isinstance(value, tuple):
            return value
        from framegate.control.configuration.units import parse_duration_ms, parse_instant_ns

        if value == "never":
            return "instant", 0
        try:
            left = parse_duration_ms(value)
        except ValueError:
            left = -1
        try:
            return ("ttl", left) if left > 0 else ("instant", parse_instant_ns(value, 0))
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class JavaHeap(click.ParamType[str]):
    """The heap of the Java virtual machine that runs Spark: a size, also as Java writes it (``1g``, ``512m``). The value is Java's."""

    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Mebibytes in Java's form."""
        from framegate.control.configuration.units import parse_size

        try:
            size = parse_size(re.sub(r"(?i)(?<=\d)([kmgt])$", r"\1iB", value))
        except ValueError:
            self.fail(f"{value!r} is not a size: write a number with MiB or GiB, or Java's 512m, 1g", param, ctx)
        if size < LEAST_HEAP:
            self.fail(f"{value!r} is too small: Spark needs 512m", param, ctx)
        return f"{size >> 20}m"


class Moment(click.ParamType[int]):
    """A time such as ``2027-01-15T08:00:00Z``, or ``10m`` for ten minutes ago, in nanoseconds since 1970."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Nanoseconds; a number is returned as it is."""
        if isinstance(value, int):
            return value
        import datetime

        from framegate.control.configuration.units import parse_duration_ms

        try:
            return time.time_ns() - parse_duration_ms(value) * 1_000_000
        except ValueError:
            pass
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2027-01-15T08:00:00Z, or 10m for ten minutes ago", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone: write {value}Z for UTC", param, ctx)
        return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1) * 1000


class ChannelId(click.ParamType[str]):
    """``slot-generation-counter``."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text."""
        from framegate.proxy.network.connection_id import parse_connection_id

        try:
            parse_connection_id(value)
        except ValueError:
            self.fail(f"{value!r} is not a channel id such as 0-1-42; `framegate channels list` shows the ids", param, ctx)
        return value


class AdminAddress(click.ParamType[str]):
    """``unix:PATH``, or ``host:port`` of a forwarded socket."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text."""
        from framegate.proxy.config.address import parse_address

        if not value.strip():
            self.fail("is empty: write unix:PATH", param, ctx)
        if "://" in value and not value.startswith("unix:"):
            self.fail(f"{value!r} has a scheme: write unix:PATH or host:port", param, ctx)
        if not value.startswith("unix:") and ("/" in value or os.path.exists(value)):
            self.fail(f"{value!r} is a path: write unix:{value}", param, ctx)
        try:
            parse_address(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        return value


ADDRESS = AdminAddress()
BOOTSTRAP = Bootstrap()
SIZE = Measure("size")
DURATION = Measure("duration")
JAVA_HEAP = JavaHeap()
CHANNEL = ChannelId()
LISTENER = Name("a listener")
UPSTREAM = Name("an upstream")
MOMENT = Moment()
