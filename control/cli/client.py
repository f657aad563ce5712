"""A call to the control plane, and what becomes of its errors: a sentence on standard error, and an exit code.

Loads grpc; the commands import it when they are called.
"""

import contextlib
import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc's own lines on stderr would stand beside ours

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

if TYPE_CHECKING:
    from control.gen.framegate.control.v1.channel_service_pb2 import ChannelSelector

__all__ = ["CALL_TIMEOUT_S", "CLIENT_KEY", "EXIT_CODES", "EXIT_FAILED", "EXIT_NOT_FOUND", "calling", "metadata", "select", "tell_missing"]

CALL_TIMEOUT_S: Final = 10.0
"""Deadline of calls that do not wait for connections to end."""
CLIENT_KEY: Final = "framegate-client"
"""Metadata that says who calls, for the audit rows; ``control.service.interceptor`` reads it."""
EXIT_FAILED: Final = 1
EXIT_NOT_FOUND: Final = 3
EXIT_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 2,
    grpc.StatusCode.NOT_FOUND: EXIT_NOT_FOUND,
    grpc.StatusCode.ABORTED: 4,
    grpc.StatusCode.UNAVAILABLE: 5,
    grpc.StatusCode.DEADLINE_EXCEEDED: 5,
}
"""Exit codes of failed calls; all others are ``EXIT_FAILED``."""


@contextlib.contextmanager
def calling(address: str) -> Iterator[grpc.Channel]:
    """A channel to the control plane; a call that fails inside ends the process with its sentence and exit code."""
    try:
        with grpc.insecure_channel(address) as channel:
            yield channel
    except grpc.RpcError as error:
        failed = cast("grpc.Call", error)  # what a call raises is the call
        for line in explain(failed, address):
            sys.stderr.write(f"framegate: {line}\n")
        sys.exit(EXIT_CODES.get(failed.code(), EXIT_FAILED))


def metadata() -> tuple[tuple[str, str], ...]:
    """Who calls."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid:{os.getuid()}"
    return ((CLIENT_KEY, f"framegate cli, {user}, pid {os.getpid()}".encode("ascii", "replace").decode()),)


def explain(error: grpc.Call, address: str) -> Sequence[str]:
    """What went wrong, in sentences: the wrong fields of a request one by one, else the message with its reason."""
    if error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata():
        return [f"the control plane at {address} cannot be reached; is `framegate serve` running there? (--address, FRAMEGATE_ADDRESS)"]
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return [f"the control plane at {address} did not answer within {CALL_TIMEOUT_S:g} s"]
    status = rpc_status.from_call(error)
    reason = ""
    for detail in () if status is None else status.details:
        bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        if detail.Unpack(bad):
            return [f"{item.field}: {item.description}" for item in bad.field_violations]
        if detail.Unpack(info):
            reason = f" ({info.reason})"
    return [f"{error.details()}{reason or f' ({error.code().name})'}"]


def select(channels: Sequence[str], listener: str | None) -> "ChannelSelector":
    """The selector of a call that changes channels."""
    from control.gen.framegate.control.v1.channel_service_pb2 import ChannelIds, ChannelSelector

    if listener is not None:
        return ChannelSelector(listener=listener)
    return ChannelSelector(channels=ChannelIds(ids=channels))


def tell_missing(missing: Sequence[str]) -> None:
    """End with ``EXIT_NOT_FOUND`` when some of the channels named are not open; what was done to the others stays done."""
    if missing:
        sys.stderr.write(f"framegate: not open: {', '.join(missing)}\n")
        sys.exit(EXIT_NOT_FOUND)
