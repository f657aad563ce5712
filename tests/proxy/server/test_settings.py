"""What the start message becomes, and changes to it."""

import dataclasses
import json
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.proxy.auth.auth_requests import PendingAuth, SupportedApis
from framegate.proxy.auth.server import SaslServerAuthenticators, SaslServerSettings
from framegate.proxy.cells import LISTENER_BLOCK, UPSTREAM_BLOCK
from framegate.proxy.config import model
from framegate.proxy.config.limits import LimitOverride, LimitsConfig, ListenerLimits
from framegate.proxy.config.model import (
    LISTS_WHOLE,
    MIB,
    EndpointConfig,
    Forwarding,
    KafkaRule,
    KafkaRules,
    KeepAlive,
    ListenerConfig,
    ListenerTimeouts,
    ListenerTls,
    MemoryPoolConfig,
    ProxyConfig,
    SocketConfig,
    TapConfig,
    TapRule,
    UpstreamConfig,
    UpstreamTimeouts,
    UpstreamTls,
    to_wire,
)
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.config.tls import PrincipalConfig
from framegate.proxy.errors import AuthenticationError, ConfigError
from framegate.proxy.network.authenticator import AnonymousAuthenticators
from framegate.proxy.network.memory_pool import BEGUN, PENDING, MemoryPool
from framegate.proxy.network.receive import NEVER_CUT
from framegate.proxy.network.transport import Identity
from framegate.proxy.relay.kafka_rules import KafkaJudge
from framegate.proxy.server.rows import Store, pack_stores
from framegate.proxy.server.settings import ChangeError, Settings
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.cases import each_of
from tests.fakes.changes import change, prepare
from tests.fakes.steered import Steered
from tests.fakes.world import SECOND, World

CONFIG = ProxyConfig(
    node="n",
    listeners=(
        ListenerConfig(name="a", address="0.0.0.0:0", upstream="u", max_receive_size=MIB),
        ListenerConfig(name="b", address="0.0.0.0:0", upstream="v", protocol="kafka", half_close_before_data="wait", max_receive_size=2 * MIB),
    ),
    upstreams=(
        UpstreamConfig(
            name="u", endpoints=("127.0.0.1:1", "[::1]:2", "unix:/run/u.sock"), max_receive_size=7, timeouts=UpstreamTimeouts(connect_ms=3)
        ),
        UpstreamConfig(name="v", endpoints=("127.0.0.1:9",)),
    ),
    memory_pool=MemoryPoolConfig(size=8 * MIB),
)


def changed(**sections: dict[str, Any] | None) -> ProxyConfig:
    """The configuration with other keys of the listeners a and b and the upstreams u and v; without those that are None."""
    keys = {"a": {}, "b": {}, "u": {}, "v": {}, **sections}

    def those(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dataclasses.replace(item, **keys[item.name]) for item in items if keys[item.name] is not None)

    return dataclasses.replace(CONFIG, listeners=those(CONFIG.listeners), upstreams=those(CONFIG.upstreams))


def settings_of(config: ProxyConfig = CONFIG, **message: object) -> Settings:
    return Settings({"config": to_wire(config), **message}, MemoryPool(8 * MIB, lambda: 0))


def test_routes_follow_the_configuration():
    settings = settings_of()
    route = settings.routes["a"]
    assert (route.listener, route.upstream.name, route.kafka) == ("a", "u", False)
    assert (route.options.limit.value, route.half_close_ns) == (MIB, 30_000_000_000)
    assert route.options.tls is None
    assert [settings.routes[name].waits_before_data for name in ("a", "b")] == [False, True]
    assert [endpoint.text for endpoint in route.upstream.endpoints] == ["127.0.0.1:1", "[::1]:2", "unix:/run/u.sock"]
    assert [endpoint.family for endpoint in route.upstream.endpoints] == [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX]
    options = route.upstream_options[route.upstream.endpoints[0].server_name]
    assert (options.limit.value, options.handshake_timeout_ns, options.tls) == (7, 3_000_000, None)
    assert settings.routes["b"].kafka


def test_a_listener_with_sasl_authenticates_its_clients():
    assert settings_of().in_force.credentials is None
    sasl = ListenerSasl(mechanisms=("PLAIN", "SCRAM-SHA-256"), users="/users", max_session_ms=5000, max_frame=2048)
    settings = settings_of(changed(b={"sasl": sasl}))
    told = []
    settings.in_force.credentials.attach(told.append)
    factory = settings.routes["b"].options.authenticators
    assert isinstance(factory, SaslServerAuthenticators)
    assert factory._settings == SaslServerSettings(("PLAIN", "SCRAM-SHA-256"), 5000, 2048)
    factory._source.ask(PendingAuth(SupportedApis(4), None))
    assert told == [{"type": "question", "number": 1, "queue": "listener:b", "address": "", "kind": "SupportedApis", "row": {"version": 4}}]
    assert isinstance(settings.routes["a"].options.authenticators, AnonymousAuthenticators)
    assert [settings.routes[name].authenticates for name in ("a", "b")] == [False, True]
    factory._count("PLAIN", "credentials", 5)
    counts = settings.counters.listeners["b"].counts
    assert [histogram.count for histogram in settings.counters.loop.authentications] == [0, 1, 0, 0, 0]
    assert counts.cells[LISTENER_BLOCK.at("framegate.authentication.count", "PLAIN", "credentials")] == 1
    handled = settings_of(changed(b={"sasl": sasl, "upstream": None, "handler": "m:h"}))
    assert not handled.routes["b"].options.authenticators._settings.reauthenticates


def test_frames_of_a_later_authentication_are_limited_to_those_that_pass_whole():
    for max_frame, most in ((2048, 2048), (262140, 262140), (262141, 262140), (1 << 20, 262140)):
        routes = settings_of(changed(b={"sasl": ListenerSasl(mechanisms=("PLAIN",), users="/users", max_frame=max_frame)})).routes
        assert [routes[name].options.sasl_limit for name in ("a", "b")] == [NEVER_CUT, most]


def test_our_logins_are_counted_for_their_upstream():
    settings = settings_of(changed(v={"sasl": UpstreamSasl(mechanism="OAUTHBEARER", token_file="/t")}))
    settings.in_force.logins["v"].choose("anybody").factory._count("OAUTHBEARER", "unavailable")
    at = UPSTREAM_BLOCK.at("framegate.upstream.authentication.count", "OAUTHBEARER", "unavailable")
    assert [settings.counters.upstreams[name].counts.cells[at] for name in ("u", "v")] == [0, 1]


def test_listeners_of_one_upstream_share_its_endpoints_and_have_accounts_and_counters_of_their_own():
    settings = settings_of(changed(b={"upstream": "u"}))
    first, second = settings.routes["a"], settings.routes["b"]
    assert first.upstream is second.upstream
    assert first.upstream_options[""].stats is not second.upstream_options[""].stats
    first.options.account.charge(BEGUN, 7)
    first.upstream_options[""].account.charge(PENDING, 8)
    assert [settings.counters.listeners[name].account.used for name in ("a", "b")] == [15, 0]


def test_sockets_and_refusals_follow_the_configuration():
    told = SocketConfig(receive_buffer=5, keep_alive=KeepAlive())
    listener = {"socket": told, "timeouts": ListenerTimeouts(failed_authentication_ms=7)}
    settings = settings_of(changed(a=listener, v={"socket": SocketConfig(send_buffer=6)}))
    first, second = settings.routes["a"], settings.routes["b"]
    assert (first.options.socket, first.upstream_options[""].socket) == (told, None)
    assert (second.options.socket, second.upstream_options[""].socket) == (None, SocketConfig(send_buffer=6))
    assert (first.options.failed_authentication_delay_ns, second.options.failed_authentication_delay_ns) == (7_000_000, 100_000_000)
    assert first.upstream_options[""].failed_authentication_delay_ns == 0


def test_addresses_that_control_resolved_come_first():
    endpoints = {"u": [["127.0.0.1", int(socket.AF_INET), "10.0.0.1", 5], ["", int(socket.AF_UNIX), "/x"]], "v": []}
    settings = settings_of(endpoints=endpoints)
    assert [endpoint.address for endpoint in settings.in_force.upstreams["u"].endpoints] == [("10.0.0.1", 5), "/x"]
    assert settings.in_force.upstreams["v"].endpoints == []
    with pytest.raises(ConfigError, match="broker:9092"):
        settings_of(changed(u={"endpoints": ("broker:9092",)}))


def test_an_endpoint_has_the_weight_and_zone_of_its_address_and_every_upstream_the_zone_of_the_node():
    endpoints = (EndpointConfig(address="db:1", weight=2, zone="a"), "db:2", EndpointConfig(address="unix:/x", weight=3), "[::1]:2")
    config = dataclasses.replace(changed(u={"endpoints": endpoints, "max_connections": 4}), zone="a")
    inet, inet6 = int(socket.AF_INET), int(socket.AF_INET6)
    rows = [
        ["db", inet, "10.0.0.1", 1],
        ["db", inet, "10.0.0.2", 1],
        ["db", inet, "10.0.0.1", 2],
        ["", int(socket.AF_UNIX), "/x"],
        ["::1", inet6, "::1", 2],
    ]
    upstream = settings_of(config, endpoints={"u": rows}).in_force.upstreams["u"]
    assert [(item.weight, item.zone, item.near) for item in upstream.endpoints] == [
        (2, "a", True), (2, "a", True), (1, "", False), (3, "", False), (1, "", False),
    ]  # fmt: skip


def test_a_change_is_in_force_after_commit_and_not_before():
    settings = settings_of()
    limit = settings.limits["a"]
    stays = settings.in_force.upstreams["u"].endpoints[1]
    rows = [["127.0.0.1", int(socket.AF_INET), "10.0.0.2", 6], ["::1", int(socket.AF_INET6), "::1", 2]]
    asked = change(CONFIG, {"share": 4 * MIB, "endpoints": {"u": rows}}, sizes={"a": 5})
    prepare(settings, 1, asked)
    assert (limit.value, settings.pool.size) == (MIB, 8 * MIB)
    assert settings.commit(1)
    assert (limit.value, settings.pool.size) == (5, 4 * MIB)
    assert settings.routes["a"].options.limit is limit
    assert [endpoint.text for endpoint in settings.in_force.upstreams["u"].endpoints] == ["10.0.0.2:6", "[::1]:2"]
    assert settings.in_force.upstreams["u"].endpoints[1] is stays
    assert not settings.commit(1)


def test_endpoints_that_fail_their_checks_are_those_of_the_start_then_of_the_last_change_and_stay_so_among_new_ones():
    settings = settings_of(failing={"u": {"127.0.0.1:1": "no answer"}})
    upstream = settings.in_force.upstreams["u"]
    assert [endpoint.failing for endpoint in upstream.endpoints] == ["no answer", "", ""]
    prepare(settings, 1, {"failing": {"u": {"[::1]:2": "refused", "10.0.0.2:6": "refused"}}})
    assert settings.commit(1)
    assert [endpoint.failing for endpoint in upstream.endpoints] == ["", "refused", ""]
    prepare(settings, 2, {"endpoints": {"u": [["127.0.0.1", int(socket.AF_INET), "10.0.0.2", 6]]}})
    assert settings.commit(2)
    assert [endpoint.failing for endpoint in upstream.endpoints] == ["refused"]
    with pytest.raises(ChangeError, match="no upstream"):
        prepare(settings, 3, {"failing": {"x": {}}})


def test_an_aborted_change_leaves_nothing():
    settings = settings_of()
    prepare(settings, 1, change(CONFIG, sizes={"a": 5}))
    settings.abort(2)
    with pytest.raises(ChangeError, match="change 1 is prepared"):
        prepare(settings, 3, {})
    settings.abort(1)
    assert not settings.commit(1)
    assert settings.limits["a"].value == MIB
    prepare(settings, 3, change(CONFIG, {"share": 16 * MIB}, sizes={"a": 9 * MIB}))
    assert settings.commit(3), "a larger limit with a larger share is one change"


@each_of(
    ("asked", "reason"),
    [
        ({"config": {"listeners": ["a", "c"]}}, "no c is known"),
        ({"config": {"listeners": ["a", {"name": "b"}]}}, "not the fields of ListenerConfig"),
        ({"config": {"colour": "red"}}, "not the fields of ProxyConfig: colour"),
        ({"cells": [["framegate.listener", "a"]]}, "no cells for b"),
        ({"cells": [["colour", "a"]]}, "configuration that cannot be"),
        (change(CONFIG, sizes={"a": 0}), "not within"),
        (change(CONFIG, sizes={"a": 2**31}), "not within"),
        (change(CONFIG, sizes={"a": 9 * MIB}), "below the max_receive_size of a"),
        ({"share": MIB}, "below the max_receive_size of b"),
        ({"endpoints": {"w": []}}, "no upstream w"),
        ({"endpoints": {"u": [["elsewhere", 2, "10.0.0.1", 1]]}}, "no endpoint with the host 'elsewhere'"),
        ({"colour": "red"}, "cannot change colour"),
        ({"tap_rule": "x"}, "there is no tap"),
    ],
)
def test_a_bad_change_is_refused_in_words(asked, reason):
    settings = settings_of()
    with pytest.raises(ChangeError, match=reason):
        prepare(settings, 1, asked)
    prepare(settings, 2, {})


def test_what_is_cut_through_needs_no_share_and_answers_that_pass_whole_do():
    a, b = {"forwarding": Forwarding(requests="cut_through")}, {"forwarding": Forwarding(responses="whole")}
    config = changed(a=a, b=b, v={"max_receive_size": 3 * MIB})
    settings = settings_of(config)
    prepare(settings, 1, change(config, {"share": 3 * MIB}, sizes={"a": 1024 * MIB}))
    assert settings.commit(1)
    with pytest.raises(ChangeError, match="below the max_receive_size of an upstream whose answers pass whole"):
        prepare(settings, 2, {"share": 3 * MIB - 1})


def test_tls_contexts_come_from_the_paths(tls_world):
    settings = settings_of(changed(a={"tls": tls_world.listener()}, b=None, u={"tls": UpstreamTls(ca=tls_world.authority)}, v=None))
    assert settings.routes["a"].options.tls.server_side
    assert names_of(settings) == {"127.0.0.1:1": "127.0.0.1", "[::1]:2": "::1", "unix:/run/u.sock": "localhost"}


def test_clients_and_upstreams_are_judged_as_their_settings_say(tls_world):
    tls = tls_world.listener(client_auth="required", client_ca=tls_world.authority)
    rules = PrincipalConfig(rules=("RULE:^CN=(.*?),.*$/$1/U",))
    listener = {"tls": tls, "principal": rules, "allowed_principals": ("APP",)}
    route = settings_of(changed(a=listener, u={"tls": UpstreamTls(ca=tls_world.authority, pins=("sha256/x",))})).routes["a"]
    assert route.options.authenticators.make(Identity(subject="CN=app,O=x")).principal == "APP"
    with pytest.raises(AuthenticationError, match="'OTHER' is none of allowed_principals"):
        route.options.authenticators.make(Identity(subject="CN=other,O=x"))
    for options in route.upstream_options.values():
        with pytest.raises(AuthenticationError, match="its key is pinned"):
            options.authenticators.make(Identity(subject="CN=broker"))


def names_of(settings: Settings) -> dict[str, str]:
    """The name that the certificate of each endpoint is verified against."""
    route = settings.routes["a"]
    options = {endpoint.text: route.upstream_options[endpoint.server_name] for endpoint in route.upstream.endpoints}
    return {text: option.tls.server_name for text, option in options.items()}


def test_each_address_is_verified_against_the_host_that_it_came_from(tls_world):
    hosts = ("broker-a:9", "broker-b.:9", "10.0.0.3:9", "[0:0::1]:9")
    config = changed(b=None, u={"tls": UpstreamTls(ca=tls_world.authority), "endpoints": hosts}, v=None)
    rows = [["broker-a", 2, "10.0.0.1", 9], ["broker-b.", 2, "10.0.0.2", 9], ["10.0.0.3", 2, "10.0.0.3", 9], ["::1", 10, "::1", 9]]
    assert names_of(settings_of(config, endpoints={"u": rows})) == {
        "10.0.0.1:9": "broker-a",
        "10.0.0.2:9": "broker-b",
        "10.0.0.3:9": "10.0.0.3",
        "[::1]:9": "::1",
    }
    both = [["broker-a", 2, "10.0.0.1", 9], ["broker-b.", 2, "10.0.0.1", 9]]
    assert [item.server_name for item in settings_of(config, endpoints={"u": both}).in_force.upstreams["u"].endpoints] == ["broker-a", "broker-b"]
    named = changed(b=None, u={"tls": UpstreamTls(ca=tls_world.authority, server_name="kafka.internal"), "endpoints": hosts}, v=None)
    assert set(names_of(settings_of(named, endpoints={"u": rows})).values()) == {"kafka.internal"}


def test_tls_is_made_of_what_control_sent_not_of_the_files(tls_world):
    tls = ListenerTls(certificate="/nowhere/a.crt", key="/nowhere/a.key")
    config = changed(a={"tls": tls}, u={"tls": UpstreamTls(ca="/nowhere/ca.crt")})
    with pytest.raises(ConfigError, match=r"a\.crt"):
        settings_of(config)
    sources = {"/nowhere/a.crt": tls_world.server[0], "/nowhere/a.key": tls_world.server[1], "/nowhere/ca.crt": tls_world.authority}
    files = {name: "é\n" + Path(path).read_text() for name, path in sources.items()}
    stores = {"listener/a": Store(3, "abc", {name: files[name] for name in (tls.certificate, tls.key)}), "upstream/u": Store(1, "", files)}
    made = settings_of(config, stores=pack_stores(stores)).routes["a"].options.tls
    assert (made.number, made.shown) == (3, "abc")
    with pytest.raises(ConfigError, match="was not sent"):
        settings_of(config, stores=pack_stores({}))


def test_a_store_takes_the_place_of_another_for_those_who_come_then_or_of_none(tls_world):
    config = changed(a={"tls": ListenerTls(certificate="c", key="k")}, u={"tls": UpstreamTls(ca="a", server_name="broker")})
    pair = dict(zip(("c", "k"), (Path(path).read_text() for path in tls_world.server), strict=True))
    authority = {"a": Path(tls_world.authority).read_text()}
    settings = settings_of(config, stores=pack_stores({"listener/a": Store(1, "one", pair), "upstream/u": Store(1, "", authority)}))
    route = settings.routes["a"]
    first, upstream_first = route.options.tls, route.upstream_options["broker"].tls
    with pytest.raises(ChangeError, match="nobody has the store listener/b"):
        prepare(settings, 1, {"stores": pack_stores({"listener/b": Store(2, "two", pair)})})
    with pytest.raises(ChangeError, match="certificate c"):
        prepare(settings, 1, {"stores": pack_stores({"listener/a": Store(2, "two", {**pair, "k": "no key"})})})
    prepare(settings, 2, {"stores": pack_stores({"listener/a": Store(2, "two", pair)})})
    assert route.options.tls is first, "prepared is not in force"
    settings.abort(2)
    assert not settings.commit(2)
    assert route.options.tls is first
    prepare(settings, 3, {"stores": pack_stores({"listener/a": Store(2, "two", pair), "upstream/u": Store(1, "", authority)})})
    assert settings.commit(3)
    assert (route.options.tls.number, route.options.tls.shown) == (2, "two")
    assert route.options.tls.context is not first.context
    assert route.upstream_options["broker"].tls is upstream_first, "it has that one already"
    prepare(settings, 4, {"stores": pack_stores({"upstream/u": Store(2, "", authority)})})
    assert settings.commit(4)
    assert (route.upstream_options["broker"].tls.number, route.upstream_options["broker"].tls.server_name) == (2, "broker")
    assert route.options.tls.number == 2


class Tapped:
    """Settings with the tap and the relay of a processor, and the rules a and b in force."""

    def __init__(self, folder: Path) -> None:
        self.rules = (TapRule(name="a", max_loss_percent=1.0), TapRule(name="b", max_cpu_percent=1.0))
        config = TapConfig(directory=str(folder), rules=self.rules)
        self.tap = TapWriter(config, "n", "0", "b")
        first = TapRules(config.rules, self.tap)
        first.begin(1)
        self.world = World(rules=first, writer=self.tap)
        self.settings = settings_of(dataclasses.replace(CONFIG, tap=config))
        self.settings.attach(self.world.relay, self.tap)

    def asked(self, *rules: TapRule, changed: str = "") -> dict[str, Any]:
        return change(self.settings.config, {"tap_rule": changed} if changed else {}, rules=rules)

    def change(self, *rules: TapRule, changed: str = "") -> None:
        prepare(self.settings, 1, self.asked(*rules, changed=changed))
        assert self.settings.commit(1)

    def turn_off(self, *names: str) -> None:
        """As rules do that exceed a limit of their own."""
        for name in names:
            self.tap.watched[name].off = True

    @property
    def in_force(self) -> list[str]:
        """The names of the rules that match."""
        return [row["name"] for row in json.loads(self.world.relay.pairs.rules.text)]


@pytest.fixture
def tapped(tmp_path):
    made = Tapped(tmp_path)
    yield made
    made.world.close()


def test_tap_rules_are_in_force_after_commit_and_not_before(tapped):
    before = tapped.world.relay.pairs.rules
    prepare(tapped.settings, 1, tapped.asked(TapRule(name="c", listeners=("b",))))
    assert tapped.world.relay.pairs.rules is before
    tapped.settings.abort(1)
    assert not tapped.settings.commit(1)
    assert tapped.world.relay.pairs.rules is before
    tapped.change(TapRule(name="c", listeners=("b",)))
    assert tapped.in_force == ["c"]
    tapped.change()
    assert tapped.in_force == []


@each_of(
    ("rules", "reason"),
    [
        ((TapRule(name="x"), TapRule(name="x")), "tap rules that cannot be: x: is the name of two rules"),
        ((TapRule(name="x", listeners=("a", "c")),), "no listener c"),
        ((TapRule(name="x", networks=("10.0.0.0/33",)),), "tap rules that cannot be: .*10.0.0.0/33"),
    ],
)
def test_tap_rules_that_cannot_be_are_refused_in_words_and_those_before_stay(tapped, rules, reason):
    with pytest.raises(ChangeError, match=reason):
        prepare(tapped.settings, 1, change(tapped.settings.config, rules=rules, sizes={"a": 5}))
    assert not tapped.settings.commit(1)
    assert (tapped.in_force, tapped.settings.limits["a"].value) == (["a", "b"], MIB)


def test_a_rule_that_turned_itself_off_stays_off_until_a_change_names_or_changes_it(tapped):
    tapped.turn_off("a", "b")
    a, b = tapped.rules
    tapped.change(a, b, TapRule(name="c"), changed="c")
    assert tapped.in_force == ["c"]
    tapped.change(a, b, TapRule(name="c"))
    assert tapped.in_force == ["c"]
    tapped.change(a, b, changed="a")
    assert tapped.in_force == ["a"]
    tapped.change(a, dataclasses.replace(b, max_cpu_percent=50.0))
    assert tapped.in_force == ["a", "b"]
    tapped.turn_off("a")
    tapped.change(b)
    tapped.change(a, b, changed="a")
    assert tapped.in_force == ["a", "b"]


@pytest.fixture
def limited():
    """Settings and quotas of a processor."""
    world = World()
    settings = settings_of(changed(a={"limits": ListenerLimits(request_bytes_rate=70)}))
    settings.attach(world.relay, None)
    yield SimpleNamespace(settings=settings, quotas=world.relay.pairs.quotas)
    world.close()


def test_quotas_are_in_force_from_the_start_and_after_a_commit(limited):
    assert limited.quotas.limits.listeners["a"] == ListenerLimits(request_bytes_rate=70)
    assert limited.quotas.active
    asked = change(limited.settings.config, node=LimitsConfig(response_frames_rate=9), limits={"a": ListenerLimits(connections=1)})
    prepare(limited.settings, 1, asked)
    assert limited.quotas.limits.node == LimitsConfig()
    limited.settings.abort(1)
    assert not limited.settings.commit(1)
    prepare(limited.settings, 2, asked)
    assert limited.settings.commit(2)
    assert limited.quotas.limits.node == LimitsConfig(response_frames_rate=9)
    assert limited.quotas.limits.listeners == {"a": ListenerLimits(connections=1), "b": ListenerLimits()}
    assert limited.quotas.buckets["node", "", "response_frames"].rate == 9


def test_quotas_that_cannot_be_are_refused_in_words_and_those_before_stay(limited):
    before = limited.quotas.limits
    node = LimitsConfig(overrides=(LimitOverride(network="10.0.0.1/8"),))
    with pytest.raises(ChangeError, match=r"limits that cannot be: .*host bits"):
        prepare(limited.settings, 1, change(limited.settings.config, node=node, sizes={"a": 5}))
    assert not limited.settings.commit(1)
    assert limited.quotas.limits is before


# Sessions.


@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_clients_that_are_verified_resume_no_session_for_longer_than_two_hours(tls_world, client_auth):
    section = tls_world.listener(client_auth=client_auth, client_ca=tls_world.authority)
    files = {path: Path(path).read_text() for path in (*tls_world.server, tls_world.authority)}
    stores = pack_stores({"listener/a": Store(1, "shown", files)})
    settings = settings_of(changed(a={"tls": section}), stores=stores)
    world = World()
    settings.attach(world.relay, None)
    options = settings.routes["a"].options
    for hours in (2, 4, 6):
        before = options.tls
        world.clock.ns = 1000 * SECOND + hours * 3600 * SECOND - 1
        world.poll(1)
        assert options.tls is before
        world.clock.ns += 1
        world.poll(2)
        assert (options.tls is not before) is (client_auth != "none")
        assert (options.tls.number, options.tls.shown) == (1, "shown")
        assert (options.tls.context is not before.context) is (client_auth != "none"), "tickets are the context's"
    world.close()


def test_rules_about_kafka_change_on_listeners_that_have_some_and_count_what_they_refuse():
    listeners = (CONFIG.listeners[0], dataclasses.replace(CONFIG.listeners[1], kafka=KafkaRules()))
    settings = settings_of(dataclasses.replace(CONFIG, listeners=listeners))
    rules = settings.routes["b"].rules
    assert settings.routes["a"].rules is None
    judge = KafkaJudge(rules, "p")
    prepare(settings, 1, change(settings.config, kafka={"b": KafkaRules(rules=(KafkaRule(deny=("DeleteTopics",)),))}))
    delete = struct.pack(">hhihiii", 20, 1, 7, -1, 0, 0, 0)[:-4]
    judge.follow()
    judge.judge(delete)
    assert not judge.answer
    assert settings.commit(1)
    judge.follow()
    judge.judge(delete)
    assert judge.answer == struct.pack(">iii", 7, 0, 0)
    (refusals,) = settings.refusals
    refused = refusals.take()
    assert (refused["count"], refused["api"], refused["kind"]) == (1, "DeleteTopics", "api")
    options = settings.routes["b"].upstream_options
    assert {item.cut_from for item in options.values()} == {LISTS_WHOLE}
    assert all(item.keeps_first for item in (*options.values(), settings.routes["b"].options))
    route, other = settings.routes["b"], ListenerTimeouts(idle_ms=77_000)
    for number, kafka in ((2, settings.config.listeners[1].kafka), (3, None)):  # another route, and then one without rules
        configured = dataclasses.replace(settings.config.listeners[1], timeouts=other, kafka=kafka)
        config = dataclasses.replace(settings.config, listeners=(settings.config.listeners[0], configured))
        prepare(settings, number, {"config": model.difference_to_wire(settings.config, config)})
        settings.commit(number).routes({route})
        judge.judge(delete)
        assert [item.take()["count"] for item in settings.refusals if item.waiting] == [1], "an open connection's refusals are still reported"
    judge.judge(delete)
    settings._forget_replaced(set())
    assert [item.take()["count"] for item in settings.refusals if item.waiting] == [1], "also those before its end"
    settings._forget_replaced(set())
    assert settings.refusals == []


def test_standing_actions_come_with_the_start_and_with_changes_and_replace_each_other() -> None:
    steered = Steered()
    pairs, rows = steered.world.relay.pairs, []
    for number, value in ((1, "10.0.0.0/8"), (2, "10.1.0.0/16"), (3, "10.0.0.1/8")):
        condition = {"field": "address", "value": value, "negated": False}
        row = {"number": number, "verb": "mute", "reason": "", "request_rate": 0, "response_rate": 0, "conditions": [condition]}
        answer = steered.ask("prepare", change={"standing": [row]})
        if number == 3:
            assert (answer["type"], "has host bits set" in answer["reason"]) == ("refused", True)
        else:
            assert (answer, steered.ask("commit")) == ({"type": "prepared"}, {"type": "committed"})
            rows = [row]
            assert [(item.number, item.is_for("l", "10.1.0.1:9", "p", "")) for item in pairs.standing] == [(number, True)]
    steered.world.close()
    again = Steered(start={"standing": rows})
    assert [item.number for item in again.world.relay.pairs.standing] == [2]
    again.world.close()
