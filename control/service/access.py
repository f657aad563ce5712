"""The table of all methods of the API: which role each needs, and whether a call leaves an audit row.

``view`` shows; ``operate`` changes what traffic may do, and can be undone; ``admin`` also ends the proxy's work, decides which data of clients is
written to disk, and who may log in. Roles are not checked yet, because callers cannot be told apart: only the user that runs framegate can open the
admin socket, and has every role. Audit is enforced: a change whose row cannot be kept is refused.
"""

import enum
from typing import Final, NamedTuple

__all__ = ["METHODS", "Access", "Role", "access_of"]

_PACKAGE: Final = "framegate.control.v1"


class Role(enum.StrEnum):
    """The rights of a caller; each role includes the one before it."""

    VIEW = "view"
    OPERATE = "operate"
    ADMIN = "admin"


class Access(NamedTuple):
    """Attributes: ``role`` that a caller needs; ``audited``: whether each call leaves a row."""

    role: Role
    audited: bool


_SHOW: Final = Access(Role.VIEW, audited=False)
_CHANGE: Final = Access(Role.OPERATE, audited=True)
_ADMIN: Final = Access(Role.ADMIN, audited=True)

_SERVICES: Final = {
    "CertificateService": {"ListCertificates": _SHOW, "ReloadCertificates": _CHANGE},
    "ChannelService": {
        "ListChannels": _SHOW,
        "ListClosedChannels": _SHOW,
        "GetChannel": _SHOW,
        "MuteChannels": _CHANGE,
        "UnmuteChannels": _CHANGE,
        "CloseChannels": _CHANGE,
    },
    "ConfigurationService": {"GetConfiguration": _SHOW, "ApplyConfiguration": _ADMIN},
    "HandlerService": {"ListHandlers": _SHOW},
    "KafkaRuleService": {"GetKafkaRules": _SHOW, "UpdateKafkaRules": _CHANGE},
    "LimitService": {
        "ListLimits": _SHOW,
        "GetLimit": _SHOW,
        "UpdateLimit": _CHANGE,
        "GetNodeLimits": _SHOW,
        "UpdateNodeLimits": _CHANGE,
    },
    "ListenerService": {"ListListeners": _SHOW, "GetListener": _SHOW},
    "LogService": {"GetLog": _SHOW, "UpdateLog": _CHANGE},
    "PoolService": {
        "GetMemoryPool": _SHOW,
        "UpdateMemoryPool": _CHANGE,
        "GetProcessorPool": _SHOW,
        "UpdateProcessorPool": _CHANGE,
    },
    "ProxyService": {"GetProxy": _SHOW, "DrainProxy": _ADMIN},
    "TapService": {
        "ListTapRules": _SHOW,
        "GetTapRule": _SHOW,
        "CreateTapRule": _ADMIN,
        "UpdateTapRule": _ADMIN,
        "DeleteTapRule": _ADMIN,
    },
    "UpstreamService": {"ListUpstreams": _SHOW, "GetUpstream": _SHOW, "ListBrokers": _SHOW},
    "UserService": {"ListUsers": _SHOW, "CreateUser": _ADMIN, "UpdateUser": _ADMIN, "DeleteUser": _ADMIN},
}
METHODS: Final = {f"{_PACKAGE}.{service}/{method}": access for service, methods in _SERVICES.items() for method, access in methods.items()}
"""By ``package.Service/Method``."""


def access_of(method: str) -> Access:
    """The entry of ``package.Service/Method``; a method that is missing from the table needs the highest role and is audited."""
    return METHODS.get(method, _ADMIN)
