"""The OTEL_* variables that OpenTelemetry's specification gives the user of an SDK: the one table of what framegate does with each.

Where the specification has an SDK warn of a bad value and take its default, framegate refuses to start: who sets a variable wants what it says.
An empty value is as good as none. Variables that are not in the table are another's.
"""

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from proxy.config.address import parse_address

__all__ = ["PER_SIGNAL", "SIGNALS", "VARIABLES", "Fault", "Values", "Variable", "read"]

SIGNALS: Final = ("metrics", "traces", "logs")
PER_SIGNAL: Final = "OTEL_EXPORTER_OTLP_"
"""``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like: each has a variant for each signal, as ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, which wins."""

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HEADER: Final = re.compile(r"[a-z0-9_.-]+")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_OURS: Final = frozenset({"host", "connection", "content-type", "content-length", "content-encoding", "transfer-encoding", "te", "user-agent"})
_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_MINUTE_MS: Final = 60_000


class Takes(Protocol):
    """What values a variable has: ``words``, for people. ``parse`` makes one of text; ValueError says what is wrong with it."""

    @property
    def words(self) -> str: ...
    def parse(self, text: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of ``names``, in any case; ``others`` are known to the specification and not to us, with the reason."""

    names: tuple[str, ...]
    others: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        return ", ".join(f"`{name}`" for name in self.names)

    def parse(self, text: str) -> str:
        found = text.lower()
        if found in self.names:
            return found
        reason = dict(self.others).get(found)
        raise ValueError(f"must be one of {', '.join(self.names)}" + (f": {reason}" if reason else ""))


@dataclass(frozen=True, slots=True)
class SomeOf:
    """A list of such names, divided by commas; ``none`` stands alone and is the empty list."""

    one: OneOf

    @property
    def words(self) -> str:
        return f"a list of {self.one.words}; or `none`"

    def parse(self, text: str) -> tuple[str, ...]:
        names = [item.strip().lower() for item in text.split(",") if item.strip()]
        if names == ["none"]:
            return ()
        if "none" in names:
            raise ValueError("has none among others")
        if not names:
            raise ValueError(f"names nothing; none says that, or else some of {', '.join(self.one.names)}")
        return tuple(dict.fromkeys(self.one.parse(name) for name in names))


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``least`` to ``most``; ``hint`` is said when it is smaller."""

    least: int
    most: int
    unit: str = ""
    hint: str = ""

    @property
    def words(self) -> str:
        return f"{self.least} to {self.most}{f' {self.unit}' if self.unit else ''}"

    def parse(self, text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if value is None or not self.least <= value <= self.most:
            raise ValueError(
                f"must be a whole number, {self.words}" + (f": {self.hint}" if self.hint and value is not None and value < self.least else "")
            )
        return value


@dataclass(frozen=True, slots=True)
class Share:
    """A number from 0 to 1."""

    words: str = "0.0 to 1.0"

    def parse(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 1.0:  # which NaN is not
            raise ValueError("must be a number from 0 to 1")
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """``true``, in any case, is true. Anything but ``false`` besides is refused: the specification takes it for false, which nobody means."""

    words: str = "`true`, `false`"

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    words: str = "any text"

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Pairs:
    """``key=value,key=value``, percent-encoded."""

    words: str = "`key=value,…`, percent-encoded"

    def parse(self, text: str) -> tuple[tuple[str, str], ...]:
        pairs = {}
        for number, item in enumerate((item for item in text.split(",") if item.strip()), 1):
            key, equals, value = item.partition("=")
            key = _decoded(key, number)
            if not equals or not key:
                raise ValueError(f"must be key=value,key=value: entry {number} is not")
            pairs[key] = _decoded(value, number)
        return tuple(pairs.items())


def _decoded(text: str, number: int) -> str:
    try:
        if _BAD_ESCAPE.search(text) is None:
            return urllib.parse.unquote(text.strip(), errors="strict")
    except UnicodeDecodeError:
        pass
    raise ValueError(f"has a % in entry {number} that no two hexadecimal digits of UTF-8 follow; a % itself is %25")


@dataclass(frozen=True, slots=True)
class Headers:
    """Such pairs, whose keys are names of headers. Values are secrets."""

    words: str = "`key=value,…`, percent-encoded; secret"

    def parse(self, text: str) -> tuple[tuple[str, str], ...]:
        pairs = tuple((key.lower(), value) for key, value in Pairs().parse(text))
        for number, (key, value) in enumerate(pairs, 1):
            if not _HEADER.fullmatch(key) or key.endswith("-bin"):
                raise ValueError(f"has a name in entry {number} that is not one of a text header")
            if key in _OURS or key.startswith("grpc-"):
                raise ValueError(f"has {key} in entry {number}, which the protocol sets")
            if not _PRINTABLE.fullmatch(value):
                raise ValueError(f"has a value in entry {number} with characters that a header cannot have")
        return pairs


@dataclass(frozen=True, slots=True)
class File:
    """The path of a file that can be read."""

    words: str = "path of a PEM file"

    def parse(self, text: str) -> str:
        try:
            with open(text, "rb") as file:
                file.read(1)
        except OSError as error:
            raise ValueError(f"names a file that cannot be read: {error.strerror or error}") from None
        return text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``http://`` or ``https://``, a host, a port or none, a path or none; or ``host:port``, for gRPC."""

    words: str = "`http://host:port`, `https://host:port`; over gRPC also `host:port`; over HTTP the URL may have a path"

    def parse(self, text: str) -> str:
        bare = _HOST_AND_PORT.fullmatch(text) is not None
        try:
            url = urllib.parse.urlsplit(f"http://{text}" if bare else text)
            good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
            good = (
                good and not url.query and not url.fragment and "@" not in url.netloc and _PRINTABLE.fullmatch(text) is not None and " " not in text
            )
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be http://host:port or https://host:port, without user, query and fragment")
        return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class Host:
    """An address or a name to listen at, without a port; of IPv6 with or without brackets."""

    words: str = "an address or a host name, without a port"

    def parse(self, text: str) -> str:
        host = f"[{text}]" if ":" in text and not text.startswith("[") else text
        try:
            parse_address(f"{host}:0", port_zero=True, unix=False)
        except ValueError:
            raise ValueError("must be an address or a host name, without a port") from None
        return host


@dataclass(frozen=True, slots=True)
class Refused:
    """Set, it is an error."""

    reason: str

    @property
    def words(self) -> str:
        return "refused"

    def parse(self, text: str) -> str:
        raise ValueError(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable, or of the OTLP exporter one and its variants for each signal.

    Attributes:
        name: of it; of one with variants the one for all signals.
        takes: its values.
        default: what holds without it, for people.
        meaning: what it does here.
        variants: whether there are some.
        shown: the value may be shown.
    """

    name: str
    takes: Takes
    default: str
    meaning: str
    variants: bool = False
    shown: bool = True

    def names(self) -> Iterator[tuple[str, str]]:
        """Each name with the signal that it is for; that for all signals has none."""
        yield self.name, ""
        for signal in SIGNALS if self.variants else ():
            yield self.name.replace(PER_SIGNAL, f"{PER_SIGNAL}{signal.upper()}_"), signal


def _general() -> Iterator[Variable]:
    ratio = (("jaeger_remote", "sampling is not fetched from elsewhere"), ("xray", "sampling is not fetched from elsewhere"))
    foreign = "give one of these to callers, too"
    propagators = tuple((name, foreign) for name in ("b3", "b3multi", "jaeger", "xray", "ottrace"))
    yield Variable(
        name="OTEL_SDK_DISABLED",
        takes=Flag(),
        default="`false`",
        meaning="Nothing is exported, over OTLP or to Prometheus: it wins over the file, and a row (`telemetry_disabled`) says so.",
    )
    yield Variable(
        name="OTEL_SERVICE_NAME", takes=Text(), default="`framegate`", meaning="The resource's `service.name`; wins over OTEL_RESOURCE_ATTRIBUTES."
    )
    yield Variable(
        name="OTEL_RESOURCE_ATTRIBUTES",
        takes=Pairs(),
        default="none",
        meaning="Further attributes of the resource; win over `service.version` and `service.instance.id`, which framegate sets.",
    )
    levels = OneOf(("trace", "debug", "info", "warn", "warning", "error", "fatal", "none"))
    yield Variable(name="OTEL_LOG_LEVEL", takes=levels, default="`info`", meaning="Of the rows `library_log` by OpenTelemetry itself.")
    yield Variable(
        name="OTEL_PROPAGATORS",
        takes=SomeOf(OneOf(("tracecontext", "baggage"), propagators)),
        default="`tracecontext,baggage`",
        meaning="How callers of the control plane name the span that theirs belongs to.",
    )
    yield Variable(
        name="OTEL_TRACES_SAMPLER",
        takes=OneOf(
            ("always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
            (*ratio, ("parentbased_jaeger_remote", ratio[0][1])),
        ),
        default="`parentbased_always_on`",
        meaning="Which spans are kept.",
    )
    yield Variable(name="OTEL_TRACES_SAMPLER_ARG", takes=Share(), default="`1.0`", meaning="The share that `traceidratio` keeps.")
    not_stdout = ("console", "stdout has framegate's own rows; send them to a collector")
    for signal, names, default in (
        ("METRICS", ("otlp", "prometheus"), "`otlp` where an endpoint is set"),
        ("TRACES", ("otlp",), "`otlp` where an endpoint is set"),
        ("LOGS", ("otlp",), "`none`, or `otlp` where an endpoint for logs is set"),
    ):
        others = (not_stdout, ("logging", not_stdout[1]), ("zipkin", "Zipkin takes OTLP"), ("prometheus", "Prometheus takes metrics"))
        yield Variable(
            name=f"OTEL_{signal}_EXPORTER",
            takes=SomeOf(OneOf(names, tuple(item for item in others if item[0] not in names))),
            default=default,
            meaning="Where they go; `telemetry.otlp.signals` and `telemetry.prometheus` in the file win.",
        )
    yield Variable(
        name="OTEL_EXPORTER_PROMETHEUS_HOST",
        takes=Host(),
        default="`127.0.0.1`",
        meaning="With OTEL_METRICS_EXPORTER=prometheus: where scrapes are answered.",
    )
    yield Variable(
        name="OTEL_EXPORTER_PROMETHEUS_PORT", takes=Whole(0, 65_535), default="`9464`", meaning="Likewise; 0 asks the kernel for a free one."
    )
    yield Variable(
        name="OTEL_METRIC_EXPORT_INTERVAL",
        takes=Whole(100, 60 * _MINUTE_MS, "ms"),
        default="`10000` (the specification: 60000)",
        meaning="Between two exports of metrics; `telemetry.otlp.interval` wins.",
    )
    yield Variable(
        name="OTEL_METRIC_EXPORT_TIMEOUT",
        takes=Whole(100, 10 * _MINUTE_MS, "ms"),
        default="`30000`",
        meaning="The most that one export of metrics takes.",
    )
    filters = OneOf(("trace_based", "always_on", "always_off"))
    yield Variable(
        name="OTEL_METRICS_EXEMPLAR_FILTER",
        takes=filters,
        default="`trace_based`",
        meaning="Of `rpc.server.call.duration`: which calls are exemplars.",
    )
    for prefix, what, delay in (("BSP", "spans", 5_000), ("BLRP", "log records", 1_000)):
        yield Variable(
            name=f"OTEL_{prefix}_SCHEDULE_DELAY",
            takes=Whole(10, 60 * _MINUTE_MS, "ms"),
            default=f"`{delay}`",
            meaning=f"Between two exports of {what}.",
        )
        yield Variable(
            name=f"OTEL_{prefix}_EXPORT_TIMEOUT",
            takes=Whole(100, 10 * _MINUTE_MS, "ms"),
            default="`30000`",
            meaning=f"The most that one export of {what} takes.",
        )
        yield Variable(
            name=f"OTEL_{prefix}_MAX_QUEUE_SIZE",
            takes=Whole(1, 65_536),
            default="`2048`",
            meaning=f"So many {what} wait; those beyond are dropped and counted.",
        )
        yield Variable(
            name=f"OTEL_{prefix}_MAX_EXPORT_BATCH_SIZE",
            takes=Whole(1, 65_536),
            default="`512`",
            meaning=f"So many {what} in one export; not more than OTEL_{prefix}_MAX_QUEUE_SIZE.",
        )


def _limits() -> Iterator[Variable]:
    for name, default, meaning in (
        ("ATTRIBUTE_COUNT", "`128`", "Attributes of a span, event, link or log record."),
        ("ATTRIBUTE_VALUE_LENGTH", "none", "Characters of an attribute's value."),
        ("SPAN_ATTRIBUTE_COUNT", "OTEL_ATTRIBUTE_COUNT_LIMIT", "Attributes of a span."),
        ("SPAN_ATTRIBUTE_VALUE_LENGTH", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "Characters of a span's attribute's value."),
        ("SPAN_EVENT_COUNT", "`128`", "Events of a span."),
        ("SPAN_LINK_COUNT", "`128`", "Links of a span."),
        ("EVENT_ATTRIBUTE_COUNT", "`128`", "Attributes of a span's event."),
        ("LINK_ATTRIBUTE_COUNT", "`128`", "Attributes of a span's link."),
        ("LOGRECORD_ATTRIBUTE_COUNT", "OTEL_ATTRIBUTE_COUNT_LIMIT", "Attributes of a log record."),
        ("LOGRECORD_ATTRIBUTE_VALUE_LENGTH", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "Characters of a log record's attribute's value."),
    ):
        yield Variable(name=f"OTEL_{name}_LIMIT", takes=Whole(0, 2**31 - 1), default=default, meaning=f"{meaning} What is beyond is cut off.")


def _otlp() -> Iterator[Variable]:
    seconds = "the specification has milliseconds here; Python's own exporters read seconds"
    for name, takes, default, meaning in (
        (
            "ENDPOINT",
            Endpoint(),
            "`http://127.0.0.1:4317`; over HTTP port 4318",
            "Where the collector is; `telemetry.otlp.endpoint` wins. Over HTTP the one for all signals gets `/v1/metrics` and so on appended.",
        ),
        (
            "PROTOCOL",
            OneOf(("grpc", "http/protobuf"), (("http/json", "every collector takes protobuf"),)),
            "`grpc`",
            "`telemetry.otlp.protocol` wins.",
        ),
        ("HEADERS", Headers(), "none", "Sent with each export."),
        ("COMPRESSION", OneOf(("gzip", "none")), "`none`", "Of each export."),
        ("TIMEOUT", Whole(100, 10 * _MINUTE_MS, "ms", seconds), "`10000`", "The most that one export takes, with all its attempts."),
        ("CERTIFICATE", File(), "the system's", "Whom to trust that the collector is who it says."),
        ("CLIENT_KEY", File(), "none", "The key of OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE; neither goes without the other."),
        ("CLIENT_CERTIFICATE", File(), "none", "Who we are, for the collector."),
        ("INSECURE", Flag(), "`false`", "Over gRPC, of an endpoint `host:port`: without TLS."),
    ):
        yield Variable(name=f"{PER_SIGNAL}{name}", takes=takes, default=default, meaning=meaning, variants=True, shown=name != "HEADERS")
    yield Variable(
        name="OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        takes=OneOf(("cumulative", "delta", "lowmemory")),
        default="`cumulative`",
        meaning="Whether counters and histograms say what was counted since the start, or since the last export.",
    )
    yield Variable(
        name="OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        takes=OneOf(("explicit_bucket_histogram",), (("base2_exponential_bucket_histogram", "processors count in buckets of fixed bounds"),)),
        default="`explicit_bucket_histogram`",
        meaning="The only one there is.",
    )


def _refused() -> Iterator[Variable]:
    ours = "framegate's own file says what telemetry does: telemetry in framegate.yaml"
    for name, reason in (
        ("OTEL_CONFIG_FILE", ours),
        ("OTEL_EXPERIMENTAL_CONFIG_FILE", ours),
        ("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "Zipkin takes OTLP; set OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("OTEL_EXPORTER_OTLP_SPAN_INSECURE", "is now called OTEL_EXPORTER_OTLP_TRACES_INSECURE"),
        ("OTEL_EXPORTER_OTLP_METRIC_INSECURE", "is now called OTEL_EXPORTER_OTLP_METRICS_INSECURE"),
    ):
        yield Variable(name=name, takes=Refused(reason), default="none", meaning=f"{reason[0].upper()}{reason[1:]}.")


VARIABLES: Final = (*_general(), *_otlp(), *_limits(), *_refused())


@dataclass(frozen=True, slots=True)
class Fault:
    """A variable that is set to something that cannot be. ``value`` is None where it may not be shown."""

    name: str
    value: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.name}{'' if self.value is None else f'={self.value!r}'} {self.text}"


class Values:
    """The variables that are set, parsed. ``faults`` grows with what is found to be wrong."""

    def __init__(self, values: Mapping[str, Any], faults: list[Fault]) -> None:
        self._values = values
        self.faults = faults

    def get(self, name: str, default: Any = None) -> Any:
        """The value of one, or the default."""
        return self._values.get(name, default)

    def otlp(self, what: str, signal: str, default: Any = None) -> Any:
        """The value of one of the exporter: the signal's, or else the one for all."""
        return self.get(self.otlp_name(what, signal), default)

    def otlp_name(self, what: str, signal: str) -> str:
        """The name of the one that ``otlp`` takes."""
        own = f"{PER_SIGNAL}{signal.upper()}_{what}"
        return own if own in self._values else f"{PER_SIGNAL}{what}"


def read(environ: Mapping[str, str] = os.environ) -> Values:
    """Parse what is set."""
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for variable in VARIABLES:
        for name, _ in variable.names():
            text = environ.get(name, "").strip()
            if not text:
                continue
            try:
                values[name] = variable.takes.parse(text)
            except ValueError as error:
                secret = isinstance(variable.takes, Endpoint) and any(mark in text for mark in "@?#")  # a password, a token
                faults.append(Fault(name, text if variable.shown and not secret else None, str(error)))
    return Values(values, faults)
