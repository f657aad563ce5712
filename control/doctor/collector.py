"""Each collector that telemetry goes to: does it take an export. One without anything in it is sent, over the way that `serve` would take."""

from collections.abc import Iterator

from control.doctor.finding import Finding
from control.doctor.probe import Deadline
from control.doctor.surroundings import Surroundings
from control.errors import StartError
from control.telemetry.attempt import Outcome
from control.telemetry.environment import Target, judge
from control.telemetry.transport import transport

__all__ = ["look"]

_EMPTY = b""
"""An export of no items, of any signal."""
_ADVICE = {
    "unavailable": "is it there? telemetry.otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT says where it is looked for; http:// is without TLS",
    "timeout": "it is there and does not answer: look at the collector, and at what drops packets on the way",
    "refused": "it does not take this signal, or not from us: its receivers, its path, OTEL_EXPORTER_OTLP_HEADERS, its certificate and ours",
}
_ELSE = "is that an OTLP collector, and is the protocol its own? grpc has port 4317, http/protobuf has 4318"


def look(around: Surroundings) -> Iterator[Finding]:
    """One finding for each signal that goes to one. The variables are those of this environment, which those of a framegate that runs may not be."""
    if around.config is None:
        yield Finding("telemetry", "collector", "unknown", "without a configuration there is none to look for")
        return
    try:
        settings = judge(around.config.telemetry, around.environment)
    except StartError as error:
        yield Finding("telemetry", "variables", "fault", str(error), "mend the variable; serve does not start with it")
        return
    targets = [signal.target for signal in (settings.metrics, settings.traces, settings.logs) if signal is not None]
    if not targets:
        yield Finding("telemetry", "collector", "ok", "nothing goes to a collector")
    deadline = Deadline(around.timeout_s)
    for left, target in zip(range(len(targets), 0, -1), targets, strict=True):
        yield _met(target, deadline.left() / left)


def _met(target: Target, timeout_s: float) -> Finding:
    subject = f"collector of {target.signal}"
    try:
        way = transport(target)
    except StartError as error:
        return Finding("telemetry", subject, "fault", str(error), "mend the file; serve does not start with it")
    except ImportError as error:
        return Finding("telemetry", subject, "fault", f"{error.name} is not installed", "pip install 'framegate[otlp]'")
    try:
        outcome: Outcome = way.send(_EMPTY, timeout_s)
    finally:
        way.close()
    if not outcome.end:
        return Finding("telemetry", subject, "ok", f"{target.endpoint} takes exports over {target.protocol}")
    found = f"{target.endpoint} does not take exports over {target.protocol} ({outcome.end}): {outcome.text}"
    return Finding("telemetry", subject, "warning", found, _ADVICE.get(outcome.end, _ELSE))
