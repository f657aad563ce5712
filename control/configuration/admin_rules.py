"""Rules of the admin API's sockets: modes, groups, certificates, and the principals that have a role."""

import grp
import re
from typing import Final

from framegate.control.configuration.document import Document, Path
from framegate.control.configuration.listener_rules import allowed_rules, mapping_rules
from framegate.control.configuration.tls_rules import listener_tls_rules
from framegate.proxy.config.model import AdminConfig, AdminTcp, RoleSocket

_MODE: Final = re.compile("06[0246][0246]")
_TCP: Final = ("admin", "tcp")


def admin_addresses(config: AdminConfig) -> dict[Path, AdminConfig | RoleSocket | AdminTcp]:
    """The sections with an address, by the path of the address; those of ``tcp`` last."""
    sections: dict[Path, AdminConfig | RoleSocket | AdminTcp | None] = {
        ("admin", "address"): config,
        ("admin", "operate", "address"): config.operate,
        ("admin", "view", "address"): config.view,
    }
    return {path: section for path, section in {**sections, (*_TCP, "address"): config.tcp}.items() if section is not None}


def admin_rules(document: Document, config: AdminConfig) -> None:
    """Check ``admin``."""
    for address, section in admin_addresses(config).items():
        if isinstance(section, AdminTcp):
            continue
        path = address[:-1]
        if not _MODE.fullmatch(section.mode):
            document.add((*path, "mode"), "must be 0600 to 0666, of reading and writing only: 0660 also lets in the group, 0666 everybody")
        elif section.group and section.mode[2] != "6":
            document.add((*path, "group"), "has no effect: mode does not let it in; set mode to 0660")
        elif document.files:
            document.add((*path, "group"), _group_fault(section.group))
        if path == ("admin",) and section.mode.endswith("6"):
            document.warn((*path, "mode"), "lets everybody on this machine drain framegate, create users and record traffic")
    if config.tcp is not None:
        listener_tls_rules(document, _TCP, config.tcp.tls)
        mapping_rules(document, (*_TCP, "principal", "rules"), config.tcp.principal.rules)
        for role in ("view", "operate", "admin"):
            allowed_rules(document, (*_TCP, role), getattr(config.tcp, role))
        if not (config.tcp.view or config.tcp.operate or config.tcp.admin):
            document.warn(_TCP, "refuses everybody: no principal has a role; set view, operate or admin", "")


def _group_fault(group: str) -> str | None:
    if group and not group.isdecimal():
        try:
            grp.getgrnam(group)
        except KeyError:
            return "is no group of this machine"
    return None
