"""The configuration file applied to a framegate that runs: by SIGHUP, by itself, or not."""

import hashlib
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.control.identity.users_file import changing
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, run_cli
from tests.fakes.mounted import Mounted
from tests.fakes.sasl_frames import log_in, stored
from tests.fakes.upstream import ask
from tests.fakes.waiting import until

Row = dict[str, Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
FAST = {"poll": "100ms", "grace": "100ms"}


def limited(config: Row, size: int, /, **values: Any) -> Row:
    """The configuration with another limit of its first listener."""
    listener, *others = config["listeners"]
    return {**config, **values, "listeners": [{**listener, "max_receive_size": size}, *others]}


def limit(proxy: Framegate) -> int:
    return int(proxy.json("limits", "get")[0]["max_receive_size_bytes"])


def text_of(config: Row | str) -> str:
    return config if isinstance(config, str) else json.dumps(config, indent=1)


def write(path: Path, config: Row) -> None:
    """Exchange the file in one step, as tools do."""
    new = path.with_suffix(".new")
    new.write_text(text_of(config))
    new.rename(path)


def test_sighup_applies_the_file_and_a_bad_one_changes_nothing(tmp_path: Path, plain: Row) -> None:
    with Framegate(tmp_path, plain) as proxy:
        path = tmp_path / "framegate.yaml"
        write(path, limited(proxy.config, 4096))
        assert proxy.reload() == "applied, 1 value changed"
        assert (limit(proxy), proxy.events("configuration_applied")[-1]["keys"]) == (4096, ["listeners[plain].max_receive_size"])
        assert proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "8KiB").returncode == 0
        assert proxy.metric("framegate_config_differences") == 1
        write(path, limited(proxy.config, -1, node="m/"))
        said = proxy.reload()
        assert (said.partition(" 1 to")[0], said.rpartition(" (")[2]) == ("refused: line 2: node = m/: must be", "and 1 more fault)")
        refused = proxy.events("configuration_refused")[-1]
        assert [fault.split(":")[1] for fault in refused["faults"]] == [" node = m/", " listeners[0].max_receive_size = -1"]
        write(path, limited(proxy.config, 2048, node="other"))
        assert proxy.reload() == "refused: nothing is applied: a restart is needed to change node"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (8192, 1)
        write(path, limited(proxy.config, 4096))
        assert proxy.reload() == "applied, 1 value changed"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (4096, 0)


@pytest.mark.extended
def test_what_was_set_by_hand_is_saved_and_loads_to_what_is_in_force(tmp_path: Path, plain: Row) -> None:
    with Framegate(tmp_path, plain) as proxy:
        for words in (
            ("limits", "set", "--listener", "plain", "--max-receive-size", "8KiB", "--connections", "7"),
            ("pool", "set", "--size", "9MiB"),
        ):
            assert proxy.cli(*words).returncode == 0
        before = proxy.json("config", "show")
        assert [item["path"] for item in before["differences"]] == [
            "listeners[plain].max_receive_size",
            "listeners[plain].limits.connections",
            "memory_pool.size",
        ]
        saved = proxy.json("config", "save")
        assert (saved["file"], saved["etag"], saved["difference_count"]) == (str(tmp_path / "framegate.yaml"), before["etag"], 3)
        after = proxy.json("config", "show")
        assert (after["etag"], after["differences"], after["file_state"]) == (before["etag"], [], "FILE_STATE_LOADED")
        assert run_cli("check", "--config", saved["file"]).returncode == 0
        assert proxy.reload() == "applied, 0 values changed"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (8192, 0)


def swap(mounted: Mounted, config: Row | str, **files: bytes) -> None:
    """Exchange the files of a mounted ConfigMap. ``files``: more of them, by name with ``_`` for the dot."""
    mounted.replace({"framegate.yaml": text_of(config).encode(), **{name.replace("_", "."): content for name, content in files.items()}})


def test_a_config_map_is_applied_by_itself_only_when_wanted_and_a_bad_one_is_reported_once(tmp_path: Path, plain: Row) -> None:
    plain["rotation"] = FAST
    mounted = Mounted(tmp_path, "link", {"framegate.yaml": b""})
    with Framegate(tmp_path, plain) as proxy:
        swap(mounted, limited(proxy.config, 4096))
        until(lambda: proxy.metric("framegate_config_file_changed"))
        assert (limit(proxy), proxy.events("configuration_applied")) == (2**20, [])
        watched = limited(proxy.config, 4096, config={"watch": True})
        swap(mounted, watched)
        assert proxy.reload() == "applied, 2 values changed"
        for count, size in ((2, 5000), (3, 6000)):
            swap(mounted, limited(watched, size))
            until(lambda count=count: len(proxy.events("configuration_applied")) == count)  # type: ignore[misc]
            assert limit(proxy) == size
        swap(mounted, "node: [")
        refused = proxy.wait_row(lambda row: row["event"] == "files_refused")
        assert (refused["kind"], refused["reason"].partition(",")[0]) == (
            "configuration",
            "line 1: the document: is not YAML: while parsing a flow node",
        )
        swap(mounted, limited(watched, 7000, node="other"))
        proxy.wait_row(lambda row: row["event"] == "files_refused" and "a restart is needed to change node" in row["reason"])
        time.sleep(0.5)  # five more looks
        assert (limit(proxy), len(proxy.events("files_refused"))) == (6000, 2)
        assert proxy.metric("framegate_reload_count_total", framegate_file_kind="configuration", error_type="refused") == 2
        assert proxy.metric("framegate_config_file_changed") == 1
        swap(mounted, limited(watched, 6000))
        proxy.wait_row(lambda row: row["event"] == "files_restored")
        assert (proxy.metric("framegate_config_file_changed"), proxy.metric("framegate_config_differences")) == (0, 0)


class Repeat(threading.Thread):
    """Does one thing again and again, which must be served each time. ``end`` returns how often it was."""

    def __init__(self, do: Callable[[], bool]) -> None:
        super().__init__()
        self.count, self.ended, self.fault = 0, False, ""
        self._do = do
        self.start()

    def run(self) -> None:
        try:
            while not self.ended:
                if not self._do():
                    raise ValueError("not served")
                self.count += 1
        except (OSError, ValueError, EOFError) as error:
            self.fault = repr(error)

    def end(self) -> int:
        self.ended = True
        self.join(10)
        assert self.fault == ""
        return self.count


def talking(sock: socket.socket) -> Repeat:
    """A client that asks without a pause, each frame another one, and takes the answers in order."""
    numbers = itertools.count()

    def one() -> bool:
        body = next(numbers).to_bytes(8, "big") * 16
        return ask(sock, body) == body

    return Repeat(one)


def many(config: Row, count: int) -> Row:
    (listener,) = config["listeners"]
    return {**config, "listeners": [listener, *({**listener, "name": f"more-{number}"} for number in range(count))]}


@pytest.mark.extended
def test_a_hundred_listeners_come_and_go_while_traffic_flows(tmp_path: Path, plain: Row) -> None:
    with Framegate(tmp_path, {**plain, "processors": 2}) as proxy:
        path = tmp_path / "framegate.yaml"
        talks = [talking(proxy.connect("plain")) for _ in range(4)]
        took = []
        for round_ in range(2):
            more = many(proxy.config, 100)
            write(path, more)
            began = time.monotonic()
            answer = proxy.json("config", "apply")
            took.append(time.monotonic() - began)
            assert (answer["difference_count"], answer["differences"][0]["path"]) == (100, "listeners[more-0]"), round_
            addresses = {item["name"]: item["address"] for item in proxy.json("listeners", "list")}
            assert len(addresses) == 101
            proxy.serving["listeners"] = addresses
            for name in ("more-0", "more-99", "plain"):
                assert ask(proxy.connect(name), b"there") == b"there"
            write(path, proxy.config)
            assert proxy.reload() == "applied, 100 values changed"
            assert [item["name"] for item in proxy.json("listeners", "list")] == ["plain"]
        counts = [talk.end() for talk in talks]
        assert min(counts) > 100
        assert proxy.metric("framegate_config_differences") == 0
        print(f"100 listeners applied in {min(took):.2f} to {max(took):.2f} s with the command, {sum(counts)} frames meanwhile")


def shown(proxy: Framegate, listener: str, context: ssl.SSLContext) -> tuple[str, str]:
    """The fingerprint of the certificate that a new connection meets, and its version of TLS."""
    with proxy.connect(listener, context) as client:
        assert isinstance(client, ssl.SSLSocket)
        assert ask(client, b"new") == b"new"
        return hashlib.sha256(client.getpeercert(binary_form=True) or b"").hexdigest(), str(client.version())


def fingerprint(pem: bytes) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()


def test_tls_and_sasl_change_under_load_for_new_connections_and_nothing_is_lost(tmp_path: Path, plain: Row) -> None:
    authority = Authority(tmp_path)
    leaves = [authority.leaf(name) for name in ("one", "two")]
    for name, users in (("some", ("alice",)), ("all", ("alice", "bob"))):
        with changing(tmp_path / name) as file:
            for user in users:
                file.add(user, {"SCRAM-SHA-256": stored("SCRAM-SHA-256", user)})
    (listener,) = plain["listeners"]

    def config(number: int) -> Row:
        certificate, key = leaves[number]
        tls = {"certificate": certificate, "key": key, "min_version": ("1.2", "1.3")[number]}
        sasl = {"mechanisms": [["PLAIN"], ["PLAIN", "SCRAM-SHA-256"]][number], "users": ("some", "all")[number]}
        secured = {**listener, "protocol": "kafka", "timeouts": {"failed_authentication": "0ms"}, "sasl": sasl}
        return {**plain, "processors": 2, "listeners": [{**listener, "name": "tls", "tls": tls}, {**secured, "name": "sasl"}]}

    trusting = ssl.create_default_context(cafile=str(authority.path))
    with Framegate(tmp_path, config(0)) as proxy:

        def logged_in(user: str) -> bool:
            with proxy.connect("sasl") as client:
                return log_in(client, user, user) and ask(client, b"new") == b"new"

        clients = [proxy.connect("sasl") for _ in range(3)]
        assert all(log_in(client, "alice", "alice") for client in clients)
        talks = [talking(client) for client in (*clients, *(proxy.connect("tls", trusting) for _ in range(3)))]
        opening = [Repeat(lambda: bool(shown(proxy, "tls", trusting))), Repeat(lambda: logged_in("alice"))]
        for number in (1, 0, 1, 0, 1):
            write(tmp_path / "framegate.yaml", {**proxy.config, **config(number)})
            assert proxy.reload().startswith("applied, ")
            assert shown(proxy, "tls", trusting)[0] == fingerprint(Path(leaves[number][0]).read_bytes())
            assert logged_in("bob") is bool(number)
        counts = [each.end() for each in (*talks, *opening)]
        old = ssl.create_default_context(cafile=str(authority.path))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            proxy.connect("tls", old)
    assert min(counts) > 5, counts


@pytest.mark.extended
def test_a_config_map_brings_a_certificate_and_a_configuration_at_once(tmp_path: Path, plain: Row) -> None:
    authority = Authority(tmp_path)
    pairs = [authority.leaf_pem("server") for _ in range(5)]
    mounted = Mounted(tmp_path, "link", {"framegate.yaml": b"", "tls.crt": pairs[0][0], "tls.key": pairs[0][1]})
    tls: Row = {"certificate": "tls.crt", "key": "tls.key"}
    plain |= {"rotation": FAST, "config": {"watch": True}, "listeners": [{**plain["listeners"][0], "tls": tls}]}
    context = ssl.create_default_context(cafile=str(authority.path))
    with Framegate(tmp_path, plain) as proxy:

        def swapped(config: Row | str, certificate: bytes, key: bytes) -> None:
            swap(mounted, config, tls_crt=certificate, tls_key=key)

        def served(number: int) -> None:
            until(lambda: shown(proxy, "plain", context)[0] == fingerprint(pairs[number][0]), number)

        talk = talking(proxy.connect("plain", context))
        served(0)
        tls["min_version"] = "1.3"
        swapped(limited(proxy.config, 4096), *pairs[1])
        served(1)
        assert (until(lambda: limit(proxy) == 4096), shown(proxy, "plain", context)[1]) == (True, "TLSv1.3")
        swapped("node: [", *pairs[2])  # a certificate that is good beside a file that is not
        served(2)
        proxy.wait_row(lambda row: row["event"] == "files_refused" and row["kind"] == "configuration")
        swapped(limited(proxy.config, 5000), pairs[3][0], pairs[2][1])  # the key of another certificate
        proxy.wait_row(lambda row: row["event"] == "files_refused" and row["kind"] == "tls")
        until(lambda: [row for row in proxy.events("files_refused") if "is not the key" in row["reason"] and row["kind"] == "configuration"])
        served(2)
        assert limit(proxy) == 4096
        tls["min_version"] = "1.2"
        swapped(limited(proxy.config, 6000), *pairs[4])
        served(4)
        until(lambda: limit(proxy) == 6000)
        until(lambda: proxy.metric("framegate_config_file_changed") == 0)
        assert talk.end() > 5
