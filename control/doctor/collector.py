"""Whether each collector takes an export: an empty one is sent, with the settings of `serve`."""

import dataclasses
from collections.abc import Iterator

from framegate.control.doctor.finding import Deadline, Finding
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.errors import StartError
from framegate.control.telemetry.environment import Target, judge

_ADVICE = (
    "is it there, and is the protocol its own (grpc has port 4317, http/protobuf 4318)? telemetry.otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT says "
    "where it is; http:// is without TLS. If it refuses: its receivers, its path, OTEL_EXPORTER_OTLP_HEADERS, its certificate and ours"
)


def look(around: Surroundings) -> Iterator[Finding]:
    """One finding for each signal that is exported. The variables are those of this process, which may differ from a running framegate's."""
    if around.config is None:
        yield Finding("telemetry", "collector", "unknown", "without a configuration there is none to look for")
        return
    try:
        settings = judge(around.config.telemetry, around.environment)
    except StartError as error:
        yield Finding("telemetry", "variables", "fault", str(error), "mend the variable; serve does not start with it")
        return
    targets = settings.targets
    if not targets:
        yield Finding("telemetry", "collector", "ok", "nothing goes to a collector")
    deadline = Deadline(around.timeout_s)
    for left, target in zip(range(len(targets), 0, -1), targets, strict=True):
        yield _met(target, deadline.left() / left)


def _met(target: Target, timeout_s: float) -> Finding:
    subject = f"collector of {target.signal}"
    try:
        from framegate.control.telemetry.exporters import probe

        text = probe(dataclasses.replace(target, timeout_s=min(timeout_s, target.timeout_s)))
    except StartError as error:
        return Finding("telemetry", subject, "fault", str(error), "mend the file; serve does not start with it")
    except ImportError as error:
        return Finding("telemetry", subject, "fault", f"{error.name} is not installed", "pip install 'framegate[otlp]'")
    if not text:
        return Finding("telemetry", subject, "ok", f"{target.endpoint} takes exports over {target.protocol}")
    return Finding("telemetry", subject, "warning", f"{target.endpoint} does not take exports over {target.protocol}: {text}", _ADVICE)
