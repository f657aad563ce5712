"""A call to the control plane, and what becomes of its errors: a sentence on standard error, and an exit code.

Loads grpc; the commands import it when they are called.
"""

import contextlib
import getpass
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc's own lines on stderr would stand beside ours

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from control.cli.options import EXIT_INTERRUPTED
from control.cli.output import print_note
from control.cli.reach import unreachable

if TYPE_CHECKING:
    from control.gen.framegate.control.v1.channel_service_pb2 import ChannelSelector

__all__ = [
    "CALL_TIMEOUT_S",
    "CLIENT_KEY",
    "EXIT_CODES",
    "EXIT_FAILED",
    "EXIT_NOT_FOUND",
    "PAGE_SIZE",
    "calling",
    "metadata",
    "names_from",
    "pages",
    "select",
]

CALL_TIMEOUT_S: Final = 10.0
"""Deadline of calls that do not wait for connections to end."""
PAGE_SIZE: Final = 1000
"""Of lists: the most that the control plane gives at once."""
CLIENT_KEY: Final = "framegate-client"
"""Metadata that says who calls, for the audit rows; ``control.service.interceptor`` reads it."""
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_CONFLICT: Final = 4
EXIT_UNAVAILABLE: Final = 5
EXIT_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: EXIT_USAGE,
    grpc.StatusCode.OUT_OF_RANGE: EXIT_USAGE,
    grpc.StatusCode.NOT_FOUND: EXIT_NOT_FOUND,
    grpc.StatusCode.ABORTED: EXIT_CONFLICT,
    grpc.StatusCode.ALREADY_EXISTS: EXIT_CONFLICT,
    grpc.StatusCode.UNAVAILABLE: EXIT_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: EXIT_UNAVAILABLE,
}
"""Exit codes of failed calls; all others are ``EXIT_FAILED``."""


@contextlib.contextmanager
def calling(address: str, *, change: bool = False) -> Iterator[grpc.Channel]:
    """A channel to the control plane; a call that fails inside ends the process with its sentence and exit code.

    Args:
        address: of the control plane, as ``--address`` gives it.
        change: the calls change something: one that broke off may have done so.
    """
    try:
        with grpc.insecure_channel(address) as channel:
            yield channel
    except grpc.RpcError as error:
        failed = cast("grpc.Call", error)  # what a call raises is the call
        for line in explain(failed, address, change=change):
            print_note(line)
        sys.exit(EXIT_CODES.get(failed.code(), EXIT_FAILED))
    except KeyboardInterrupt:
        print_note("interrupted" + (_UNKNOWN if change else ""))
        sys.exit(EXIT_INTERRUPTED)


def names_from(address: str, ask: Callable[[grpc.Channel], list[str]]) -> list[str]:
    """What ``ask`` finds out over a channel; nothing when it fails: a shell that completes a word has no use for a reason."""
    try:
        with grpc.insecure_channel(address) as channel:
            return ask(channel)
    except grpc.RpcError:
        return []


class Page(Protocol):
    """An answer that is a part of a list."""

    @property
    def next_page_token(self) -> str:
        """Of the next part; empty: there is none."""


_Page = TypeVar("_Page", bound=Page)


def pages(ask: Callable[[str], _Page]) -> Iterator[_Page]:
    """Every page of a list; ``ask`` gets the token of each, an empty one first."""
    page = ask("")
    yield page
    while page.next_page_token:
        page = ask(page.next_page_token)
        yield page


def metadata() -> tuple[tuple[str, str], ...]:
    """Who calls."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid:{os.getuid()}"
    return ((CLIENT_KEY, f"framegate cli, {user}, pid {os.getpid()}".encode("ascii", "replace").decode()),)


def explain(error: grpc.Call, address: str, *, change: bool = False) -> Sequence[str]:
    """What went wrong, in sentences: the wrong fields of a request one by one, else the message with its reason."""
    unknown = _UNKNOWN if change else ""
    if not error.trailing_metadata():  # nobody answered; whoever answers says more
        match error.code():
            case grpc.StatusCode.UNAVAILABLE if _never_connected(error):
                return [f"the control plane at {address} cannot be reached: {unreachable(address)}"]
            case grpc.StatusCode.UNAVAILABLE:
                return [f"the control plane at {address} went away during the call ({error.details()}){unknown}"]
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return [f"the control plane at {address} did not answer within {CALL_TIMEOUT_S:g} s{unknown}"]
            case grpc.StatusCode.UNIMPLEMENTED:
                return [f"what answers at {address} does not know this call: another version of framegate, or its health listener"]
    status = rpc_status.from_call(error)
    reason = ""
    for detail in () if status is None else status.details:
        bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        if detail.Unpack(bad):
            return [f"{item.field}: {item.description}" for item in bad.field_violations]
        if detail.Unpack(info):
            reason = f" ({info.reason})"
    return [f"{error.details()}{reason or f' ({error.code().name})'}"]


_UNKNOWN: Final = "; the change may have been made all the same"
_REFUSALS: Final = ("failed to connect", "name resolution", "DNS")


def _never_connected(error: grpc.Call) -> bool:
    """Grpc has one code for a peer that is not there and for one that went away; only its text tells them apart."""
    return any(word in (error.details() or "") for word in _REFUSALS)


def select(channels: Sequence[str], listener: str | None, principal: str | None = None) -> "ChannelSelector":
    """The selector of a call that changes channels."""
    from control.gen.framegate.control.v1.channel_service_pb2 import ChannelIds, ChannelSelector

    if listener is not None:
        return ChannelSelector(listener=listener)
    if principal is not None:
        return ChannelSelector(principal=principal)
    return ChannelSelector(channels=ChannelIds(ids=channels))
