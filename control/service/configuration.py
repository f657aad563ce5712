"""ConfigurationService."""

import os
from collections.abc import Iterable, Sequence
from typing import Final

from framegate.control.configuration.difference import Difference, values
from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.control.configuration.writing import as_yaml
from framegate.control.errors import ControlError, FailedPreconditionError, InvalidArgumentError, Violation
from framegate.control.service.interceptor import Context, note, peer
from framegate.control.service.quoting import cut
from framegate.control.service.validate import Violations
from framegate.control.steering.configuration import Applied
from framegate.control.steering.configuration_file import ConfigurationFile
from framegate.control.v1 import configuration_service_pb2 as pb2
from framegate.control.v1.configuration_service_pb2_grpc import ConfigurationServiceServicer

_MOST: Final = 1_000  # Differences, faults or warnings in one answer
_VALUE: Final = 1_024
_TEXT: Final = 3 * 1024 * 1024  # Characters of a configuration; clients take messages of 4 MiB


class Configurations(ConfigurationServiceServicer):
    """Shows and applies configurations."""

    def __init__(self, file: ConfigurationFile) -> None:
        self._file = file

    async def GetConfiguration(self, request: pb2.GetConfigurationRequest, context: Context) -> pb2.GetConfigurationResponse:
        violations = Violations()
        if request.view not in pb2.GetConfigurationRequest.View.values():
            violations.add("view", f"there is no value {request.view}")
        violations.check()
        config = self._file.in_force if request.view == pb2.GetConfigurationRequest.VIEW_IN_FORCE else self._file.config
        message = status_message(self._file, _MOST)
        message.text = as_yaml(config, os.path.dirname(self._file.path), defaults=request.include_defaults)
        if len(message.text) > _TEXT:
            text = f"the configuration has {len(message.text)} characters, and an answer has at most {_TEXT}; ask for it without defaults"
            raise FailedPreconditionError(text, reason="CONFIGURATION_TOO_LARGE", size=str(len(message.text)))
        return pb2.GetConfigurationResponse(configuration=message)

    async def ApplyConfiguration(self, request: pb2.ApplyConfigurationRequest, context: Context) -> pb2.ApplyConfigurationResponse:
        text = request.text if request.HasField("text") else None
        try:
            loaded, applied = await self._file.apply(text, request.etag, local=peer().local, validate_only=request.validate_only)
        except ControlError as error:
            if isinstance(error.changed, Applied):  # it is decided
                note(*values(error.changed.differences))
            raise
        except ConfigurationError as error:
            if request.validate_only:
                return pb2.ApplyConfigurationResponse(etag=self._file.etag, faults=map(_fault, error.faults[:_MOST]))
            field = "file" if text is None else "text"
            raise InvalidArgumentError([Violation(field, str(fault)) for fault in error.faults], "CONFIGURATION_INVALID") from error
        found = applied.differences
        if not request.validate_only:
            note(*values(found))
        pending = self._file.pending if request.validate_only else applied.pending
        return pb2.ApplyConfigurationResponse(
            etag=self._file.etag,
            differences=_differences(found, _MOST),
            difference_count=len(found),
            warnings=[*map(_fault, loaded.warnings[:_MOST]), *(pb2.Fault(reason=text) for text in pending)],
        )


def status_message(file: ConfigurationFile, most: int) -> pb2.Configuration:
    """The configuration without its text, with at most so many differences."""
    by_hand, refusal = file.by_hand, file.refusal
    state = "REFUSED" if refusal is not None else "CHANGED" if file.changed else "LOADED"
    return pb2.Configuration(
        etag=file.etag,
        file=file.path,
        file_state=pb2.Configuration.FileState.Value(f"FILE_STATE_{state}"),
        file_error="" if refusal is None else str(refusal),
        differences=_differences(by_hand, most),
        difference_count=len(by_hand),
        pending=file.pending,
    )


def _differences(found: Sequence[Difference], most: int) -> Iterable[pb2.Difference]:
    for item in found[:most]:
        before, after = (None if text is None else cut(text, _VALUE) for text in item.texts)
        effect = pb2.Difference.Effect.Value(f"EFFECT_{item.effect.upper().replace(' ', '_')}")
        yield pb2.Difference(path=item.path, before=before, after=after, effect=effect)


def _fault(fault: Fault) -> pb2.Fault:
    return pb2.Fault(line=fault.line, key=fault.key, value=fault.value, reason=fault.reason)
