"""Rules of the admin API's sockets."""

from typing import Any

from framegate.control.configuration.document import document_of
from framegate.control.configuration.load import judge
from framegate.control.demo.certificates import Certificates


def found(data: dict[str, Any], admin: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    findings = judge(document_of({**data, "admin": {**data["admin"], **admin}}), machine=True)
    faults, warnings = ([(item.key, item.reason) for item in rows if item.key.startswith("admin")] for rows in (findings.faults, findings.warnings))
    return faults, [item for item in warnings if "can be replaced by other users" not in item[1]]


def test_each_fault_is_found_at_its_key(data: dict[str, Any], made: Certificates) -> None:
    address = data["admin"]["address"]
    view = {"address": address.replace("admin.sock", "view.sock")}
    files = {"certificate": str(made.server), "key": str(made.server_key), "client_ca": str(made.ca)}
    tcp = {"address": "127.0.0.1:0", **files, "view": ["RULE:.*"]}
    wrong = []
    for admin, key, part in (
        ({"mode": "0640"}, "", ""),
        ({"mode": "660"}, "admin.mode", "must be 0600 to 0666"),
        ({"mode": "0777"}, "admin.mode", "must be 0600 to 0666"),
        ({"mode": "0060"}, "admin.mode", "must be 0600 to 0666"),
        ({"group": "0"}, "admin.group", "mode does not let it in"),
        ({"view": {**view, "mode": "0660", "group": "no such group"}}, "admin.view.group", "is no group of this machine"),
        ({"view": {**view, "mode": "0660", "group": "0"}}, "", ""),
        ({"view": {"address": address}}, "admin.view.address", "is already used by admin.address"),
        ({"operate": {"address": "127.0.0.1:1"}}, "admin.operate.address", "must be unix:PATH"),
        ({"tcp": tcp}, "", ""),
        ({"tcp": {**tcp, "address": address}}, "admin.tcp.address", "a Unix socket cannot be used here"),
        ({"tcp": {**tcp, "key": str(made.client_key)}}, "admin.tcp.key", "is not the key of the certificate"),
        ({"tcp": {**tcp, "operate": ["RULE:("]}}, "admin.tcp.operate[0]", "is no rule"),
        ({"tcp": {**tcp, "principal": {"rules": []}}}, "admin.tcp.principal.rules", "needs at least one"),
        ({"tcp": {"address": "127.0.0.1:0", "certificate": str(made.server), "key": str(made.server_key)}}, "admin.tcp.client_ca", "is required"),
    ):
        faults, _ = found(data, admin)
        if ([item for item, _ in faults] != ([key] if key else [])) or not all(part in reason for _, reason in faults):
            wrong.append((admin, faults))
    assert wrong == []


def test_what_lets_in_too_many_or_nobody_is_a_warning(data: dict[str, Any], made: Certificates) -> None:
    files = {"certificate": str(made.server), "key": str(made.server_key), "client_ca": str(made.ca)}
    for admin, key in (({"mode": "0666"}, "admin.mode"), ({"tcp": {"address": "127.0.0.1:0", **files}}, "admin.tcp")):
        faults, warnings = found(data, admin)
        assert (faults, [item for item, _ in warnings]) == ([], [key])
