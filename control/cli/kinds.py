"""What options and arguments may hold: sizes with units, times with units, channel ids. Parsers are loaded when there is something to parse."""

import click

__all__ = ["CHANNEL", "DURATION", "SIZE"]


class Size(click.ParamType[int]):
    """Bytes of ``1MiB``, ``64KB``, ``4096``."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; a number is bytes already."""
        if isinstance(value, int):
            return value
        from control.configuration.units import parse_size

        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class Duration(click.ParamType[int]):
    """Milliseconds of ``250ms``, ``30s``, ``10m``."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds; a number is milliseconds already."""
        if isinstance(value, int):
            return value
        from control.configuration.units import parse_duration_ms

        try:
            return parse_duration_ms(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class ChannelId(click.ParamType[str]):
    """``slot-generation-counter``."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        from proxy.network.connection_id import parse_connection_id

        try:
            parse_connection_id(value)
        except ValueError:
            self.fail(f"{value!r} is no channel id; they look like 0-1-42 (framegate channels list)", param, ctx)
        return value


SIZE = Size()
DURATION = Duration()
CHANNEL = ChannelId()
