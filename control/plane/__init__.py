"""The control plane as those see it who show and change it: the service, the telemetry, the health listener.

    interface  ``ControlPlane``: all that may be asked or changed; ``control.steering`` implements it, tests give the service a fake one
    bounds     how much may be asked for at once
    status     the values that it gives: what there is, and what a change came to

Nothing here does anything: it is what ``service`` and ``telemetry`` on one side and ``steering`` and ``fleet`` on the other agree upon.
"""

from control.plane.bounds import MAX_HOLDERS, MAX_PAGE_SIZE, rows_per_page
from control.plane.interface import ControlPlane
from control.plane.status import (
    RETIRED,
    TAP_RULE,
    Attributes,
    BuildInfo,
    CertificateStatus,
    DownEndpoint,
    DrainResult,
    HandlerProcessStatus,
    HandlerStatus,
    Health,
    Holder,
    Limit,
    ListenerStatus,
    LogStatus,
    NodeLimits,
    Origin,
    Outcome,
    PoolShare,
    PoolStatus,
    ProcessorState,
    ProcessorStatus,
    ReloadOutcome,
    ReloadResult,
    Row,
    TapRuleStatus,
    TapStop,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
)

__all__ = [
    "MAX_HOLDERS",
    "MAX_PAGE_SIZE",
    "RETIRED",
    "TAP_RULE",
    "Attributes",
    "BuildInfo",
    "CertificateStatus",
    "ControlPlane",
    "DownEndpoint",
    "DrainResult",
    "HandlerProcessStatus",
    "HandlerStatus",
    "Health",
    "Holder",
    "Limit",
    "ListenerStatus",
    "LogStatus",
    "NodeLimits",
    "Origin",
    "Outcome",
    "PoolShare",
    "PoolStatus",
    "ProcessorState",
    "ProcessorStatus",
    "ReloadOutcome",
    "ReloadResult",
    "Row",
    "TapRuleStatus",
    "TapStop",
    "UpstreamStatus",
    "UserStatus",
    "UsersStatus",
    "rows_per_page",
]
