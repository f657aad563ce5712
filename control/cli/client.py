"""Calls to the admin API. A failed call becomes a message on standard error and an exit code.

grpc is imported when a call is made, so that help and completion are quick.
"""

import contextlib
import functools
import getpass
import importlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import click

from framegate.control.bounds import FIELD_NAMES
from framegate.control.cli.options import EXIT_CONFLICT, EXIT_INTERRUPTED, TLS_FILES, Change, tls_folder
from framegate.control.cli.options import EXIT_NOT_FOUND as EXIT_NOT_FOUND
from framegate.control.cli.output import print_note

if TYPE_CHECKING:
    import grpc
    from google.protobuf import any_pb2

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc would print lines of its own on stderr

CALL_TIMEOUT_S: Final = 10.0  # Deadline of calls that do not wait for connections to end, seconds
PAGE_SIZE: Final = 1000  # the largest page that the admin API returns
CLIENT_KEY: Final = "framegate-client"  # Metadata that names the caller in audit rows; ``framegate.control.service.interceptor`` reads it
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 5
EXIT_CODES: Final = {
    "INVALID_ARGUMENT": EXIT_USAGE,
    "OUT_OF_RANGE": EXIT_USAGE,
    "NOT_FOUND": EXIT_NOT_FOUND,
    "ABORTED": EXIT_CONFLICT,
    "ALREADY_EXISTS": EXIT_CONFLICT,
    "UNAVAILABLE": EXIT_UNAVAILABLE,
    "DEADLINE_EXCEEDED": EXIT_UNAVAILABLE,
}  # Exit codes of failed calls, by gRPC's status code; all others are ``EXIT_FAILED``
_ANSWERED: Final = ("AUDIT_BLOCKED",)
"""Reasons of an UNAVAILABLE call for which the admin API and the processors were reached, so that the exit code is ``EXIT_FAILED``."""
_UNKNOWN: Final = "; the change may have taken effect"
_OPTIONS: Final = {"ttl": "expires", "resume_token": "token", "filter": "chosen", "silenced_events": "events", "validate_only": "dry_run"}
"""The options that set a field of another name, besides those of ``FIELD_NAMES``."""
_REFUSALS: Final = ("failed to connect", "name resolution", "DNS")


@contextlib.contextmanager
def calling(address: str, *, change: bool = False) -> "Iterator[grpc.Channel]":
    """A gRPC channel to the admin API. A call that fails inside exits the process with a message and an exit code. ``address``: of the admin API, as
    in ``--address``. ``change``: the calls change something, so an interrupted call may have taken effect.
    """
    import grpc

    try:
        with _channel(address) as channel:
            yield channel
    except grpc.RpcError as error:
        failed = cast("grpc.Call", error)  # what a call raises is the call
        for line in explain(failed, address, change=change):
            print_note(line)
        sys.exit(EXIT_FAILED if _reason(failed) in _ANSWERED else EXIT_CODES.get(failed.code().name, EXIT_FAILED))
    except KeyboardInterrupt:
        print_note("interrupted" + (_UNKNOWN if change else ""))
        sys.exit(EXIT_INTERRUPTED)


def _channel(address: str) -> "grpc.Channel":
    """A channel; over TCP with the certificates of ``--tls``, if it is given."""
    import grpc

    folder = tls_folder()
    if folder is None or address.startswith("unix:"):
        return grpc.insecure_channel(address)
    try:
        certificate, key, authorities = ((folder / name).read_bytes() for name in TLS_FILES)
    except OSError as error:
        raise click.ClickException(f"--tls: {error.filename} cannot be read: {error.strerror}") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities, key, certificate))


class Service:
    """A service of the admin API, by its name in files: ``kafka_rule`` is KafkaRuleService. Its modules are imported at its first use. Methods take a
    channel, the method's name, and the fields of its request. ``timeout_s``: None: as long as it takes.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @functools.cached_property
    def messages(self) -> Any:
        return importlib.import_module(f"framegate.control.v1.{self._name}_service_pb2")

    @functools.cached_property
    def _stub(self) -> Any:
        module = importlib.import_module(f"framegate.control.v1.{self._name}_service_pb2_grpc")
        return getattr(module, f"{self._name.title().replace('_', '')}ServiceStub")

    def ask(self, channel: "grpc.Channel", method: str, timeout_s: float | None = CALL_TIMEOUT_S, **fields: Any) -> Any:
        return getattr(self._stub(channel), method)(self._request(method, fields), timeout=timeout_s, metadata=metadata())

    def listed(self, channel: "grpc.Channel", method: str, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> list[Any]:
        """All items of a list, over all its pages."""
        found = []
        for page in self.pages(channel, method, timeout_s, **fields):
            items = next(field.name for field in page.DESCRIPTOR.fields if field.is_repeated)
            found += getattr(page, items)
        return found

    def pages(self, channel: "grpc.Channel", method: str, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Iterator[Any]:
        """All pages of a list, as large as possible unless ``page_size`` is given."""
        call, request = getattr(self._stub(channel), method), self._request(method, fields)
        request.page_size = request.page_size or PAGE_SIZE
        while True:
            page = call(request, timeout=timeout_s)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def change(self, channel: "grpc.Channel", method: str, change: Change, timeout_s: float | None = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Call a method that changes something, or with ``--dry-run`` only checks the change, and say so on standard error. The request gets etag (in
        its resource, if it has one), reason, ``validate_only`` and a request id, as far as its type has these fields.
        """
        request = self._request(method, fields)
        given: dict[str, object] = {"reason": change.reason, "validate_only": change.dry_run, "request_id": str(uuid.uuid4())}
        for name in given.keys() & request.DESCRIPTOR.fields_by_name.keys():
            setattr(request, name, given[name])
        if change.etag:
            inner = [getattr(request, field.name) for field in request.DESCRIPTOR.fields if field.message_type is not None and not field.is_repeated]
            holder = next(item for item in (request, *inner) if "etag" in item.DESCRIPTOR.fields_by_name)
            holder.etag = change.etag
        answer = getattr(self._stub(channel), method)(request, timeout=timeout_s, metadata=metadata())
        if change.dry_run:
            print_note("nothing was changed: --dry-run")
        return answer

    def _request(self, method: str, fields: dict[str, Any]) -> Any:
        return getattr(self.messages, f"{method}Request")(**fields)


def names_from(address: str, ask: "Callable[[grpc.Channel], list[str]]") -> list[str]:
    """Names for shell completion: the result of ``ask``; empty when the call fails."""
    import grpc

    try:
        with _channel(address) as channel:
            return ask(channel)
    except grpc.RpcError:
        return []


def metadata() -> tuple[tuple[str, str], ...]:
    """Call metadata that names the caller."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid:{os.getuid()}"
    return ((CLIENT_KEY, f"framegate cli, {user}, pid {os.getpid()}".encode("ascii", "replace").decode()),)


def explain(error: "grpc.Call", address: str, *, change: bool = False) -> Sequence[str]:
    """The error as messages: one for each invalid field of the request, else one with the reason."""
    from google.rpc import error_details_pb2  # type: ignore[import-untyped]

    from framegate.control.cli.reach import unreachable

    unknown = _UNKNOWN if change else ""
    if not error.trailing_metadata():  # no server answered; a server would have sent metadata
        match error.code().name:
            case "UNAVAILABLE" if _never_connected(error):
                return [f"the admin API at {address} cannot be reached: {unreachable(address)}"]
            case "UNAVAILABLE":
                return [f"the connection to the admin API at {address} broke during the call ({error.details()}){unknown}"]
            case "DEADLINE_EXCEEDED":
                return [f"the admin API at {address} did not answer within {CALL_TIMEOUT_S:g} s{unknown}"]
            case "UNIMPLEMENTED":
                return [f"the server at {address} does not know this call; is it another version of framegate, or the health listener?"]
    bad = error_details_pb2.BadRequest()
    if any(detail.Unpack(bad) for detail in _details(error)):
        return [f"{_option(item.field)}: {item.description}" for item in bad.field_violations]
    return [f"{error.details()} ({_reason(error) or error.code().name})"]


def _option(field: str) -> str:
    """The option of the command that runs which sets a field of the request; the field, if there is none."""
    context = click.get_current_context(silent=True)
    options = {} if context is None else {item.name: max(item.opts, key=len) for item in context.command.params if isinstance(item, click.Option)}
    parts = field.split(".")
    for at in sorted(range(len(parts)), key=lambda at: ("[" not in parts[at], -at)):  # within a list only the list can be an option
        name, bracket, index = parts[at].partition("[")
        own = FIELD_NAMES.get(name, name)
        for known in (name, own, own.removesuffix("_ns"), _OPTIONS.get(name)):
            if known in options:
                return ".".join([f"{options[known]}{bracket}{index}", *(parts[at + 1 :] if bracket else ())])
    return field


def _reason(error: "grpc.Call") -> str:
    """The reason that the admin API gives; empty when there is none."""
    from google.rpc import error_details_pb2

    info = error_details_pb2.ErrorInfo()
    return info.reason if any(detail.Unpack(info) for detail in _details(error)) else ""


def _details(error: "grpc.Call") -> "Sequence[any_pb2.Any]":
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    return () if status is None else status.details


def _never_connected(error: "grpc.Call") -> bool:
    """Whether no connection was made. gRPC has one code for that and for a broken connection; only the text differs."""
    return any(word in (error.details() or "") for word in _REFUSALS)
