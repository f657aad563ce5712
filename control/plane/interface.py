"""What the gRPC service, the telemetry and the health listener may ask of a running framegate, or change in it.

All methods belong to the control process' event loop unless their docstring says otherwise. A change of a limit, a pool or tap rules returns when it
is in force in every processor, or raises and none has it; or the reason is CHANGE_PENDING. Cancelled, it still ends decided: taken back, or completed
in the background. Failures are the classes of ``control.errors``.

A *row* is the JSON object of one pair, as the processors give it (``proxy.server.rows``).
"""

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from control.events import Subscription
from control.plane.status import (
    Attributes,
    BuildInfo,
    CertificateStatus,
    DrainResult,
    HandlerProcessStatus,
    Health,
    Holder,
    Limit,
    ListenerStatus,
    LogStatus,
    NodeLimits,
    Outcome,
    PoolStatus,
    ProcessorStatus,
    ReloadOutcome,
    Row,
    TapRuleStatus,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
)
from proxy.cells import CellReader
from proxy.config.log import LogLevel
from proxy.config.model import DrainAccept, ProxyConfig, TapRule
from proxy.server.rows import OpenRow

if TYPE_CHECKING:
    from proxy.auth.questions import ScramCredential  # it loads what authenticates

__all__ = ["ControlPlane"]


class ControlPlane(abc.ABC):
    """Everything that may be asked of, or changed in, a running framegate."""

    @property
    @abc.abstractmethod
    def config(self) -> ProxyConfig:
        """The configuration in force, changes at run time included."""

    @property
    @abc.abstractmethod
    def started_ns(self) -> int:
        """When this process started, CLOCK_REALTIME nanoseconds."""

    @property
    @abc.abstractmethod
    def build(self) -> BuildInfo:
        """Version and whether the processors are compiled."""

    @property
    @abc.abstractmethod
    def cells(self) -> list[tuple[int, CellReader]]:
        """The shared counters of every slot that there is, by slot; before them, under ``RETIRED``, the sums of those that are gone, if any are.
        What one call gives belongs together: no slot is in it twice, or missing. Any thread.
        """

    @abc.abstractmethod
    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """The metrics of ``proxy.cells.METRICS`` whose source is control, now: by name and attributes in that table's order, empty values left out.
        Any thread.
        """

    @abc.abstractmethod
    def health(self) -> Health:
        """For probes; cheap. Any thread."""

    @abc.abstractmethod
    def handler_processes(self) -> list[HandlerProcessStatus]:
        """Every place of a handler process, by slot; none where no listener has a handler. Any thread."""

    @abc.abstractmethod
    async def list_channels(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[OpenRow], str]:
        """One page of pairs in a stable order, and the token of the next page (empty: that was the last).

        Args:
            listener: only those of this listener.
            page_size: at most so many rows, as ``rows_per_page`` takes it.
            page_token: of the page before; empty for the first.

        Raises:
            NotFoundError: no such listener. InvalidArgumentError: a bad page size or token. UnavailableError: a processor does not answer.
        """

    @abc.abstractmethod
    async def describe_channel(self, channel: int) -> OpenRow:
        """The row of one pair. Raises NotFoundError."""

    @abc.abstractmethod
    async def mute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        """Stop reading from the clients of these pairs, named by id, or all of a listener or of a principal; returns when no further header will be
        read.

        Raises NotFoundError when a single named channel, or the listener, does not exist; InvalidArgumentError unless exactly one of the three
        is given; UnavailableError when processors do not answer: its metadata say which, and for how many channels of the others it is in force.
        """

    @abc.abstractmethod
    async def unmute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        """Take the mute back. Arguments and errors as ``mute_channels``."""

    @abc.abstractmethod
    async def close_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        """Close pairs with the cause ``admin``. Arguments and errors as ``mute_channels``."""

    @abc.abstractmethod
    async def get_limits(self, listener: str | None = None) -> list[Limit]:
        """The limits in force of one or of every listener. Raises NotFoundError."""

    @abc.abstractmethod
    async def set_limit(self, listener: str, max_receive_size: int | None = None, quotas: Mapping[str, int] | None = None) -> Limit:
        """Change maxReceiveSize, for every header scanned from now on, and quotas of a listener.

        Args:
            max_receive_size: None: it stays.
            quotas: new values by the name of ``RateLimits``' field; None: they stay.

        Raises:
            NotFoundError: no such listener. InvalidArgumentError: nothing to change, or out of range. FailedPreconditionError: above a processor's
            share of the pool. AbortedError: a processor refused; none has it. UnavailableError: it is decided, but not confirmed everywhere.
        """

    @abc.abstractmethod
    async def get_node_limits(self) -> NodeLimits:
        """The quotas in force of the node, of addresses and of networks."""

    @abc.abstractmethod
    async def set_node_limits(self, changes: Mapping[str, Any], etag: str = "") -> NodeLimits:
        """Change quotas of the node, of addresses and of networks, for the next connection and the next frames.

        Args:
            changes: new values by the name of ``LimitsConfig``'s field: of ``per_address`` a mapping of those that change, of ``overrides`` all.
            etag: the change is for the quotas as they were when they had this one; empty: for whatever they are.

        Raises:
            InvalidArgumentError: nothing to change, out of range, ``protected_listener``, or networks that cannot be. EtagError: they are others.
            AbortedError, UnavailableError: as of ``set_limit``.
        """

    @abc.abstractmethod
    async def get_pool(self) -> PoolStatus:
        """Size, usage and shares of the memory pool."""

    @abc.abstractmethod
    async def top_holders(self, count: int) -> list[Holder]:
        """Who holds most of the memory pool, most first, at most ``count`` (1 to ``MAX_HOLDERS``).

        Raises:
            InvalidArgumentError: the count is out of range. UnavailableError: a processor does not answer; one that died holds nothing.
        """

    @abc.abstractmethod
    async def set_pool_size(self, size: int) -> PoolStatus:
        """Resize the memory pool, in bytes, divided over the processors.

        Raises InvalidArgumentError (not positive), FailedPreconditionError (a share would be below the largest maxReceiveSize), AbortedError.
        """

    @abc.abstractmethod
    async def set_processors(self, count: int) -> PoolStatus:
        """Start or drain and stop processors until ``count`` (1 to ``MAX_PROCESSORS``) run. Growing returns when the new ones are ready; shrinking
        when the drained ones are gone or their drain timeout closed what was left. Errors as ``set_pool_size``.
        """

    @abc.abstractmethod
    def tap_troubles(self) -> list[str]:
        """What keeps the tap from recording all frames, or is about to, a sentence each; none without a tap."""

    @abc.abstractmethod
    async def list_tap_rules(self) -> list[TapRuleStatus]:
        """Every tap rule, in order; none without a tap."""

    @abc.abstractmethod
    async def create_tap_rule(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        """Put a new rule before the one that is named, or last. Connections that are open follow at once.

        Args:
            rule: is judged as one of a configuration file is.
            before: the name of a rule; empty: none.
            validate_only: only say whether it could be done, and what would be; nobody is asked.

        Raises:
            AlreadyExistsError: a rule has the name, and its time is not over. InvalidArgumentError: the rule cannot be; the violations' fields are
                those of ``TapRule``, as in ``networks[0]``. NotFoundError: of ``before``. FailedPreconditionError: there is no tap (NO_TAP), or there
                are too many rules (TOO_MANY_TAP_RULES). AbortedError: a processor refused; none has it. UnavailableError: it is decided, but not
                confirmed everywhere.
        """

    @abc.abstractmethod
    async def update_tap_rule(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        """Change fields of a rule, or move it. What had turned itself off is on again.

        Args:
            name: of the rule; it keeps it.
            changes: new values by the name of ``TapRule``'s field.
            before: as of ``create_tap_rule``; None: it stays where it is.
            etag: the change is for the rule as it was when it had this one; empty: for whatever it is.

        Raises:
            EtagError: it is another. NotFoundError: no rule has the name. Others as ``create_tap_rule``.
        """

    @abc.abstractmethod
    async def delete_tap_rule(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        """Take a rule away. Arguments and errors as ``update_tap_rule``."""

    @abc.abstractmethod
    async def drain(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        """Be no longer ready, and, unless connections are taken until the stop, end the open ones at a frame boundary; the process stays up.

        Args:
            timeout_ms: None means the configured one.
            wait: return when no pair is open, otherwise as soon as every processor drains.
            accept: see ``DrainConfig.accept``; None: as configured, but ``refuse`` with ``wait`` or a timeout, which speak of an end.
            by, reason: who asks, and why; for the rows.

        Raises:
            InvalidArgumentError: of the timeout, or connections shall be taken until the stop and their end be waited for.
        """

    @abc.abstractmethod
    async def list_listeners(self) -> list[ListenerStatus]:
        """Every listener, in the configuration's order."""

    @abc.abstractmethod
    async def list_upstreams(self) -> list[UpstreamStatus]:
        """Every upstream, in the configuration's order. Raises UnavailableError: a processor does not answer."""

    @abc.abstractmethod
    async def list_certificates(self) -> list[CertificateStatus]:
        """Every certificate in force, of listeners, then of upstreams, in the configuration's order; in the order of their files."""

    @abc.abstractmethod
    async def reload(self) -> list[ReloadOutcome]:
        """Look at every file that may be replaced while framegate runs, and take what is new; what became of each owner's files of each kind. It goes
        on to its end, whoever waits for it.
        """

    @abc.abstractmethod
    async def list_users(self, listener: str) -> UsersStatus:
        """The users in force of a listener.

        Raises:
            NotFoundError: no such listener. FailedPreconditionError: it has no file of users (NO_USERS_FILE).
        """

    @abc.abstractmethod
    async def create_user(self, listener: str, name: str, credentials: "Mapping[str, ScramCredential]", *, validate_only: bool = False) -> UserStatus:
        """Write a new user into a listener's file of users, and have the file taken by all listeners that name it.

        Args:
            listener: its name.
            name: of the user.
            credentials: what is stored of the password, by mechanism; they are good (``control.identity.passwords.credential_faults``).
            validate_only: only say whether it could be done; nothing is written.

        Raises:
            AlreadyExistsError: there is a user of that name. NotFoundError: no such listener. InvalidArgumentError: nobody can have the name.
            FailedPreconditionError: there is no file of users (NO_USERS_FILE), it cannot be written (USERS_FILE_UNWRITABLE), or what lies in the
            listener's files is no good (IDENTITY_FILES_REFUSED). UnavailableError: somebody else is changing the file (USERS_FILE_BUSY).
        """

    @abc.abstractmethod
    async def update_user(
        self, listener: str, name: str, credentials: "Mapping[str, ScramCredential]", *, allow_missing: bool = False, validate_only: bool = False
    ) -> UserStatus:
        """Give a user other credentials, in the place of all that it has. Arguments and errors as ``create_user``, but for who is not there:
        NotFoundError, unless ``allow_missing``.
        """

    @abc.abstractmethod
    async def delete_user(self, listener: str, name: str, *, validate_only: bool = False) -> None:
        """Take a user out of a listener's file. Its open connections stay open. Arguments and errors as ``update_user``."""

    @abc.abstractmethod
    async def get_log(self) -> LogStatus:
        """Which rows are written."""

    @abc.abstractmethod
    async def set_log(self, level: LogLevel | None = None, events: Mapping[str, bool] | None = None) -> LogStatus:
        """Change which rows are written, at once.

        Args:
            level: the least that is; None: it stays.
            events: by name, whether their rows are written; those that are not named stay.

        Raises:
            InvalidArgumentError: there is no such event, or its rows are always written.
        """

    @abc.abstractmethod
    async def status(self) -> list[ProcessorStatus]:
        """Every processor slot, by number."""

    @abc.abstractmethod
    def subscribe(self, names: Collection[str] = (), after: int | None = None) -> Subscription:
        """A queue of the events with these names (``closed``, ``processor_died``, ``audit``, …; empty: all) from now on, or behind a number that was
        seen before; to be closed by whoever wants no more. Any thread.

        Raises:
            FailedPreconditionError: as ``control.events.Bus.subscribe``: what came after that number is not kept any more, or never was.
        """

    @abc.abstractmethod
    def reserve_audit(self) -> None:
        """Keep a place for the audit row of a change, before it is made; ``audit`` takes it, whatever became of the change. Any thread.

        Raises:
            UnavailableError: the row could not be kept, since stdout is not read; the change must not be made.
        """

    @abc.abstractmethod
    def audit(self, record: Row) -> None:
        """Publish an audit row, once for each ``reserve_audit``: who asked for what, values before and after, the result. The log does not drop it,
        however slowly stdout is read. Any thread.
        """
