"""Names, addresses, upstreams, certificates and telemetry: what must hold between keys."""

import pathlib
from typing import Any

from framegate.control.configuration.document import document_of
from framegate.control.configuration.load import judge
from framegate.control.demo.certificates import Certificates
from tests.control.configuration.conftest import unwarned
from tests.fakes.configuration import faults, misnamed, put, warnings


def test_a_whole_configuration_has_no_fault(data: dict[str, Any]) -> None:
    assert faults(data) == []


def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any]) -> None:
    folder = pathlib.Path(data["admin"]["address"].removeprefix("unix:")).parent
    endpoints = ("127.0.0.1:4317", "http://", "http://host:0", "http://user@host:1", "http://host:1/a b", "http://host:1?a=b", "ftp://h:1")
    cases = [
        ("node", "edge/1", "node", "letters, digits"),
        ("listeners.1.name", "kafka", "listeners[1].name", "already used by listeners[0].name"),
        ("listeners.1.name", "Big", "listeners[1].name", "lower-case"),
        ("listeners.1.upstream", "brokerz", "listeners[1].upstream", "there are: brokers"),
        ("listeners.1.address", "127.0.0.1:9093", "listeners[1].address", "already used by listeners[0].address"),
        ("listeners.1.address", "0.0.0.0:9901", "health.address", "already used by listeners[1].address"),
        ("listeners.1.address", "nowhere", "listeners[1].address", "is not an address"),
        ("listeners", [], "listeners", "needs at least one"),
        ("upstreams.0.endpoints", [], "upstreams[0].endpoints", "needs at least one"),
        ("upstreams.0.endpoints", ["127.0.0.1:0"], "upstreams[0].endpoints[0]", "port 0"),
        ("upstreams.0.endpoints", ["127.0.0.1:9093"], "upstreams[0].endpoints[0]", "in a circle"),
        ("upstreams.0.endpoints", [{"address": "nowhere"}], "upstreams[0].endpoints[0].address", "is not an address"),
        ("upstreams.0.endpoints", [{"weight": 1}], "upstreams[0].endpoints[0].address", "is required"),
        ("upstreams.0.endpoints", [{"address": "a:1", "weight": 0}], "upstreams[0].endpoints[0].weight", "must be from 1 to 1000"),
        ("upstreams.0", {"name": "brokers", "endpoints": ["a:1"], "check": {"kind": "tls"}}, "upstreams[0].check.kind", "needs the section tls"),
        (
            "upstreams.0",
            {"name": "brokers", "endpoints": ["a:1"], "framing": "int16", "check": {"kind": "kafka"}},
            "upstreams[0].check.kind",
            "speaks int16",
        ),
        ("listeners.0.proxy_protocol", {"version": "any"}, "listeners[0].proxy_protocol.trusted", "is required"),
        ("listeners.0.proxy_protocol", {"trusted": ["10.0.0.1/8"]}, "listeners[0].proxy_protocol.trusted[0]", "has host bits set"),
        ("listeners.0.proxy_protocol", {"trusted": [], "version": "v3"}, "listeners[0].proxy_protocol.version", "'v2' or 'any'"),
        ("upstreams.0.balance", "random", "upstreams[0].balance", "or 'first_available'"),
        ("upstreams.0.ejection", {"latency_factor": 1.4}, "upstreams[0].ejection.latency_factor", "at least 1.5"),
        ("admin.address", "127.0.0.1:1", "admin.address", "must be unix:PATH"),
        ("admin.address", f"unix:/{'x' * 108}", "admin.address", "109 bytes"),
        ("health.address", "unix:/tmp/health", "health.address", "Unix socket cannot"),
        ("health.ready_when", "upstream", "health.ready_when", "no upstream has a check section"),
        ("listeners.1.timeouts", {"failed_authentication": "11s"}, "listeners[1].timeouts.failed_authentication", "is longer than handshake, 10s"),
        ("listeners.1.timeouts", {"failed_authentication": "11m"}, "listeners[1].timeouts.failed_authentication", "must be from 0"),
        ("listeners.0.tls.client_ca", ..., "listeners[0].tls.client_auth", "needs client_ca"),
        ("listeners.0.tls.client_ca", "/none", "listeners[0].tls.client_ca", "cannot be read"),
        ("listeners.0.tls.certificate", "/none", "listeners[0].tls.certificate", "cannot be read"),
        ("listeners.0.tls.certificate", "/etc/hostname", "listeners[0].tls.certificate", "no certificate"),
        ("upstreams.0.tls.key", ..., "upstreams[0].tls.certificate", "needs key"),
        ("upstreams.0.tls.certificate", ..., "upstreams[0].tls.key", "needs certificate"),
        ("upstreams.0.tls.ca", "/etc/hostname", "upstreams[0].tls.ca", "no certificate"),
        ("tap.directory", "/etc/hostname/tap", "tap.directory", "is not a directory"),
        ("listeners.1.address", f"unix:{folder}/../{folder.name}/admin.sock", "admin.address", "already used by listeners[1].address"),
        *(("telemetry.otlp.endpoint", value, "telemetry.otlp.endpoint", "http://host:port") for value in endpoints),
        ("telemetry.otlp", {"endpoint": "http://h:1/x", "protocol": "grpc"}, "telemetry.otlp.endpoint", "has a path"),
        ("telemetry.prometheus.address", "127.0.0.1:9901", "telemetry.prometheus.address", "already used by health.address"),
    ]
    assert misnamed(data, cases) == []


def test_a_key_that_has_no_effect_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    assert warnings(data, tmp_path) == []
    spare = {"name": "spare", "endpoints": ["127.0.0.1:1"]}
    cases = [
        ("upstreams.1", spare, "upstreams[1].name", "has no effect: no listener names this upstream"),
        ("upstreams.0.ejection", {"failures": 0}, "upstreams[0].ejection", "has no effect: failures and latency_factor are 0"),
        ("upstreams.0.max_connections", 1, "upstreams[0].max_connections", "is less than processors, 2"),
        ("listeners.0.proxy_protocol", {"trusted": []}, "listeners[0].proxy_protocol.trusted", "refuses everybody"),
        ("telemetry.otlp.signals", [], "telemetry.otlp.signals", "has no effect, and nothing is exported over OTLP"),
        ("telemetry.otlp.signals", ["metrics", "logs", "metrics"], "telemetry.otlp.signals", "names one twice: the second has no effect"),
        ("listeners.0.tls.client_auth", "none", "listeners[0].tls.client_ca", "has no effect: client_auth is none"),
        ("listeners.0.tls.client_auth", ..., "listeners[0].tls.client_ca", "has no effect: client_auth is none"),
    ]
    assert unwarned(data, tmp_path, cases) == []


def test_a_wildcard_of_one_family_leaves_the_other_alone(data: dict[str, Any]) -> None:
    data["listeners"][0]["address"] = "[::1]:9093"
    assert faults(put(data, "listeners.1.address", "0.0.0.0:9093")) == []


def test_rows_of_open_connections_come_each_ten_seconds_at_most_or_never_and_a_switch_is_true_or_false(data: dict[str, Any]) -> None:
    few = "must be at least 10s, or 0: never"
    times = {"0": "", "1ms": few, "9999ms": few, "10s": "", "10001ms": "", "1d": "", "86400001ms": "must be from 0 to 1d"}
    expected = {every: [("log.access.every", fault)] if fault else [] for every, fault in times.items()}
    assert {every: faults({**data, "log": {"access": {"every": every}}}) for every in times} == expected
    for value, good in ((True, True), (False, True), (1, False), ("yes", False), ("true", False), (None, True)):
        found = faults({**data, "log": {"access": {"open": value}}})
        assert found == ([] if good else [("log.access.open", "must be true or false")]), value


def test_several_endpoints_behind_a_listener_for_kafka_are_a_warning(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    def warned(protocol: str, *endpoints: str) -> list[str]:
        changed = put(put(data, "listeners.0.protocol", protocol), "upstreams.0.endpoints", list(endpoints))
        return [key for key, reason in warnings(changed, tmp_path) if "brokers of one cluster" in reason]

    assert warned("kafka", "10.0.0.1:9092", "10.0.0.2:9092") == ["upstreams[0].endpoints"]
    assert warned("kafka", "10.0.0.1:9092") == []
    assert warned("framed", "10.0.0.1:9092", "10.0.0.2:9092") == []


def test_weights_have_no_effect_where_the_first_available_endpoint_is_used(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    data["upstreams"][0] |= {"balance": "first_available", "endpoints": [{"address": "10.0.0.1:1", "weight": 2}, "10.0.0.2:1"]}
    assert "upstreams[0].balance" in [key for key, _ in warnings(data, tmp_path)]


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
