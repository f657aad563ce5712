"""Every method of the API: which role its caller needs, and whether a call leaves an audit row. The one table of methods.

``view`` sees; ``operate`` changes what traffic may do, until it is changed back; ``admin`` also ends the proxy's work, decides what of the
clients' data is written to disk, and who may come in. Who may open the admin socket, which is the user that runs framegate, has every role: roles
are not asked for until callers can be told apart. The audit is: a change whose row could not be kept is refused.
"""

import enum
from typing import Final, NamedTuple

__all__ = ["METHODS", "Access", "Role", "access_of"]

_PACKAGE: Final = "framegate.control.v1"


class Role(enum.StrEnum):
    """What a caller may do; each may what the one before it may."""

    VIEW = "view"
    OPERATE = "operate"
    ADMIN = "admin"


class Access(NamedTuple):
    """Attributes: ``role`` that a caller needs; ``audited``, whether each call leaves a row."""

    role: Role
    audited: bool


_LOOK: Final = Access(Role.VIEW, audited=False)
_CHANGE: Final = Access(Role.OPERATE, audited=True)
_GRAVE: Final = Access(Role.ADMIN, audited=True)

_SERVICES: Final = {
    "CertificateService": {"ListCertificates": _LOOK, "ReloadCertificates": _CHANGE},
    "ChannelService": {
        "ListChannels": _LOOK,
        "ListClosedChannels": _LOOK,
        "GetChannel": _LOOK,
        "MuteChannels": _CHANGE,
        "UnmuteChannels": _CHANGE,
        "CloseChannels": _CHANGE,
    },
    "HandlerService": {"ListHandlers": _LOOK},
    "LimitService": {
        "ListLimits": _LOOK,
        "GetLimit": _LOOK,
        "UpdateLimit": _CHANGE,
        "GetNodeLimits": _LOOK,
        "UpdateNodeLimits": _CHANGE,
    },
    "ListenerService": {"ListListeners": _LOOK, "GetListener": _LOOK},
    "LogService": {"GetLog": _LOOK, "UpdateLog": _CHANGE},
    "PoolService": {
        "GetMemoryPool": _LOOK,
        "UpdateMemoryPool": _CHANGE,
        "GetProcessorPool": _LOOK,
        "UpdateProcessorPool": _CHANGE,
    },
    "ProxyService": {"GetProxy": _LOOK, "DrainProxy": _GRAVE},
    "TapService": {
        "ListTapRules": _LOOK,
        "GetTapRule": _LOOK,
        "CreateTapRule": _GRAVE,
        "UpdateTapRule": _GRAVE,
        "DeleteTapRule": _GRAVE,
    },
    "UpstreamService": {"ListUpstreams": _LOOK, "GetUpstream": _LOOK},
    "UserService": {"ListUsers": _LOOK, "CreateUser": _GRAVE, "UpdateUser": _GRAVE, "DeleteUser": _GRAVE},
}
METHODS: Final = {f"{_PACKAGE}.{service}/{method}": access for service, methods in _SERVICES.items() for method, access in methods.items()}
"""By ``package.Service/Method``."""


def access_of(method: str) -> Access:
    """What a method is, by ``package.Service/Method``; one that is missing from the table is taken for the gravest."""
    return METHODS.get(method, _GRAVE)
