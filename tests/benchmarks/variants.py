"""Framegate with other settings, each for a part of the bench; and every candidate by its name."""

from __future__ import annotations

import subprocess

from candidates import Candidate, CRelay, Envoy, Framegate, HaProxy, Nginx, Place
from mutual import FramegateMutual, FramegateRenewed, HaProxyMutual
from servers import AsyncioProtocol, AsyncioStreams, UvloopProtocol, UvloopStreams

__all__ = [
    "CANDIDATES",
    "FramegateHandler",
    "FramegateLogins",
    "FramegateSixtyFour",
    "FramegateSized",
    "FramegateSteered",
    "FramegateTap",
    "FramegateUnwatched",
    "FramegateWatched",
]


class FramegateIdleRule(Framegate):
    """With a tap whose only rule matches nothing: must cost nothing."""

    name = "framegate-idle-rule"
    tap_rules = ({"name": "nobody", "networks": ["192.0.2.0/24"], "capture": "full"},)


class FramegateTap(Framegate):
    """With every frame of both directions captured in full; frames that come faster than the log is written are dropped, as by default."""

    name = "framegate-tap"
    tap_rules = ({"name": "all", "capture": "full"},)


class FramegateTapMute(FramegateTap):
    """The same, but traffic waits for the log: nothing is dropped."""

    name = "framegate-tap-mute"
    tap_rules = ({"name": "all", "capture": "full", "on_full": "mute"},)


class FramegateKafka(Framegate):
    """`protocol: kafka`: requests are paired with their answers."""

    name = "framegate-kafka"
    protocol = "kafka"


class FramegateSmallPool(Framegate):
    """A pool of 2 MiB under 8 MiB of frames in flight that span many reads: channels are muted for memory all the time."""

    name = "framegate-small-pool"
    pool = "2MiB"
    limit = "1100KiB"


class FramegateUnreached(Framegate):
    """Every rate is set, at each level, and none is reached."""

    name = "framegate-unreached"
    rates = (
        ("request_bytes_rate", 1 << 40),
        ("response_bytes_rate", 1 << 40),
        ("request_frames_rate", 1_000_000_000),
        ("response_frames_rate", 1_000_000_000),
    )


class FramegateLimited(Framegate):
    """A rate of bytes from clients that the closed loop is held up by."""

    name = "framegate-limited"
    rates = (("request_bytes_rate", 10_000_000),)


class FramegateLimitedTwo(FramegateLimited):
    """The same in two processors, which share it."""

    name = "framegate-limited-two"
    processors = 2


class FramegateLimitedFrames(Framegate):
    """A rate of frames from clients likewise."""

    name = "framegate-limited-frames"
    rates = (("request_frames_rate", 20_000),)


class FramegateHostages(Framegate):
    """A pool of 64 MiB, in front of which a thousand clients hold what they can."""

    name = "framegate-64m"
    pool = "64MiB"
    limit = "60MiB"


class FramegateHostagesSmall(Framegate):
    """The same with a pool of 4 MiB, the smallest that promises are made for."""

    name = "framegate-4m"
    pool = "4MiB"
    limit = "3MiB"


class FramegateCircle(Framegate):
    """A pool of 32 MiB under requests of 16 MB and answers as large, which must not wait for each other."""

    name = "framegate-32m"
    pool = "32MiB"
    limit = "16MiB"


class FramegateRoom(FramegateCircle):
    """The same with more room than all of them together need."""

    name = "framegate-1g"
    pool = "1GiB"


class FramegateSlowReaders(Framegate):
    """A pool of 32 MiB under answers of 200 MB that are read slowly, and frames of 1 MB beside them."""

    name = "framegate-slow"
    pool = "32MiB"
    limit = "2MiB"


class FramegateSized(FramegateTap):
    """What deploy/docs/limits.md computes the memory of: a bounded number of TLS connections, a tap, a pool."""

    name = "framegate-sized"
    pool = "64MiB"
    limit = "16MiB"
    most_connections = 3_000
    announced = 16 << 20
    """The limit, as a number."""


class FramegateTwo(Framegate):
    """Two processors."""

    name = "framegate-two"
    processors = 2


class FramegateUnwatched(Framegate):
    """Nobody is told anything."""

    name = "framegate-unwatched"

    def configuration(self) -> dict[str, object]:
        return {**super().configuration(), "telemetry": {}}

    def frames(self) -> None:
        """Nobody can ask."""


class FramegateWatched(Framegate):
    """Metrics, traces and logs go to a collector, and Prometheus may ask."""

    name = "framegate-watched"
    endpoint = ""
    """Of the collector."""

    def configuration(self) -> dict[str, object]:
        otlp = {"endpoint": self.endpoint, "interval": "10s", "signals": ["metrics", "traces", "logs"]}
        return {**super().configuration(), "telemetry": {"otlp": otlp, "prometheus": {"address": "127.0.0.1:0"}}}


class FramegateSixtyFour(Framegate):
    """As many processors as there may be."""

    name = "framegate-64"
    processors = 64
    limit = "1MiB"


class FramegateSteered(Framegate):
    """With a second listener, whose channels are steered while the first one's are measured."""

    name = "framegate-steered"
    more_listeners = ("idle",)


class FramegateLogins(Framegate):
    """With a second listener, whose clients show by SASL who they are. Its users are those of a file that `add_user` makes."""

    name = "framegate-logins"

    @classmethod
    def add_user(cls, place: Place, user: str, password: str) -> None:
        """The only user there is, before a start."""
        file = place.folder / f"{cls.name}.users"
        file.unlink(missing_ok=True)
        command = [cls.program(), "users", "add", user, "--file", str(file)]
        subprocess.run(command, input=f"{password}\n", text=True, check=True, capture_output=True)

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        listeners = configuration["listeners"]
        assert isinstance(listeners, list), "see Framegate"
        sasl = {"mechanisms": ["SCRAM-SHA-512", "PLAIN"], "users": str(self.place.folder / f"{self.name}.users")}
        listeners.append({"name": "logins", "address": "127.0.0.1:0", "upstream": "echo", "protocol": "kafka", "sasl": sasl})
        return configuration


class FramegateVarint(Framegate):
    """Clients speak int32 and the upstream varint: every frame is re-framed on its way there, and on its way back."""

    name = "framegate-varint"
    upstream_framing = "varint"


class FramegateHandler(Framegate):
    """No upstream: the shipped echo handler answers, in a process of its own."""

    name = "framegate-handler"

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        listeners = configuration["listeners"]
        assert isinstance(listeners, list), "see Framegate"
        for listener in listeners:
            listener["handler"] = "framegate.proxy.handler.echo:echo"
            del listener["upstream"]
        return {**configuration, "upstreams": [], "handlers": {"processes": 1}}


FRAMEGATES = (
    *(Framegate, FramegateIdleRule, FramegateTap, FramegateTapMute, FramegateKafka, FramegateSmallPool, FramegateTwo, FramegateSteered),
    *(FramegateHostages, FramegateHostagesSmall, FramegateCircle, FramegateRoom, FramegateSlowReaders, FramegateSized),
    *(FramegateUnreached, FramegateLimited, FramegateLimitedTwo, FramegateLimitedFrames),
    *(FramegateUnwatched, FramegateWatched, FramegateSixtyFour),
    *(FramegateVarint, FramegateHandler, FramegateLogins, FramegateMutual, FramegateRenewed),
)
SERVERS = (AsyncioStreams, AsyncioProtocol, UvloopStreams, UvloopProtocol)
CANDIDATES: dict[str, type[Candidate]] = {
    candidate.name: candidate for candidate in (CRelay, HaProxy, HaProxyMutual, Nginx, Envoy, *FRAMEGATES, *SERVERS)
}
