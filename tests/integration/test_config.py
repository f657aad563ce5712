"""The configuration file applied to a framegate that runs: by SIGHUP, by itself, or not."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, run_cli
from tests.fakes.upstream import ask

Row = dict[str, Any]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
FAST = {"poll": "100ms", "grace": "100ms"}


def limited(config: Row, size: int, /, **values: Any) -> Row:
    """The configuration with another limit of its first listener."""
    listener, *others = config["listeners"]
    return {**config, **values, "listeners": [{**listener, "max_receive_size": size}, *others]}


def limit(proxy: Framegate) -> int:
    return int(proxy.json("limits", "get")[0]["max_receive_size_bytes"])


def write(path: Path, config: Row | str) -> None:
    """Exchange the file in one step, as tools do."""
    new = path.with_suffix(".new")
    new.write_text(config if isinstance(config, str) else json.dumps(config, indent=1))
    new.rename(path)


def reload(proxy: Framegate) -> str:
    """What SIGHUP does, in the words of the row."""
    before = len(proxy.events("reloaded"))
    proxy.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while len(proxy.events("reloaded")) == before:
        assert time.monotonic() < deadline, proxy.rows[-5:]
        time.sleep(0.02)
    return str(proxy.events("reloaded")[-1]["configuration"])


def test_sighup_applies_the_file_and_a_bad_one_changes_nothing(tmp_path: Path, plain: Row) -> None:
    with Framegate(tmp_path, plain) as proxy:
        path = tmp_path / "framegate.yaml"
        write(path, limited(proxy.config, 4096))
        assert reload(proxy) == "applied, 1 value changed"
        assert (limit(proxy), proxy.events("configuration_applied")[-1]["keys"]) == (4096, ["listeners[plain].max_receive_size"])
        assert proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "8KiB").returncode == 0
        assert proxy.metric("framegate_config_differences") == 1
        write(path, limited(proxy.config, -1, node="m/"))
        said = reload(proxy)
        assert (said.partition(" 1 to")[0], said.rpartition(" (")[2]) == ("refused: line 2: node = m/: must be", "and 1 more fault)")
        refused = proxy.events("configuration_refused")[-1]
        assert [fault.split(":")[1] for fault in refused["faults"]] == [" node = m/", " listeners[0].max_receive_size = -1"]
        write(path, limited(proxy.config, 2048, node="other"))
        assert reload(proxy) == "refused: nothing is applied: a restart is needed to change node"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (8192, 1)
        write(path, limited(proxy.config, 4096))
        assert reload(proxy) == "applied, 1 value changed"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (4096, 0)


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
        assert reload(proxy) == "applied, 0 values changed"
        assert (limit(proxy), proxy.metric("framegate_config_differences")) == (8192, 0)


def swap(folder: Path, config: Row | str, number: int) -> None:
    """Exchange the files of a mounted ConfigMap as the kubelet does: ``..data`` is a link to a folder, and the file a link into it."""
    (folder / f"..{number}").mkdir()
    write(folder / f"..{number}" / "framegate.yaml", config)
    (folder / "..new").symlink_to(f"..{number}")
    os.rename(folder / "..new", folder / "..data")
    if not (folder / "framegate.yaml").is_symlink():
        (folder / "framegate.yaml").unlink()
        (folder / "framegate.yaml").symlink_to("..data/framegate.yaml")


def test_a_config_map_is_applied_by_itself_only_when_wanted_and_a_bad_one_is_reported_once(tmp_path: Path, plain: Row) -> None:
    plain["rotation"] = FAST
    with Framegate(tmp_path, plain) as proxy:
        swap(tmp_path, limited(proxy.config, 4096), 1)
        while not proxy.metric("framegate_config_file_changed"):
            time.sleep(0.05)
        assert (limit(proxy), proxy.events("configuration_applied")) == (2**20, [])
        watched = limited(proxy.config, 4096, config={"watch": True})
        swap(tmp_path, watched, 2)
        assert reload(proxy) == "applied, 2 values changed"
        for number, size in ((3, 5000), (4, 6000)):
            swap(tmp_path, limited(watched, size), number)
            proxy.wait_row(lambda row, number=number: row["event"] == "configuration_applied" and len(proxy.events(row["event"])) == number - 1)  # type: ignore[misc]
            assert limit(proxy) == size
        swap(tmp_path, "node: [", 5)
        refused = proxy.wait_row(lambda row: row["event"] == "files_refused")
        assert (refused["kind"], refused["reason"].partition(",")[0]) == (
            "configuration",
            "line 1: the document: is not YAML: while parsing a flow node",
        )
        swap(tmp_path, limited(watched, 7000, node="other"), 6)
        proxy.wait_row(lambda row: row["event"] == "files_refused" and "a restart is needed to change node" in row["reason"])
        time.sleep(0.5)  # five more looks
        assert (limit(proxy), len(proxy.events("files_refused"))) == (6000, 2)
        assert proxy.metric("framegate_reload_count_total", framegate_file_kind="configuration", error_type="refused") == 2
        assert proxy.metric("framegate_config_file_changed") == 1
        swap(tmp_path, limited(watched, 6000), 7)
        proxy.wait_row(lambda row: row["event"] == "files_restored")
        assert (proxy.metric("framegate_config_file_changed"), proxy.metric("framegate_config_differences")) == (0, 0)


class Talk(threading.Thread):
    """A client that asks without a pause, each frame another one, and takes the answers in order. ``count``: of answers."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self.count = 0
        self.ended = False
        self.fault = ""
        self.start()

    def run(self) -> None:
        try:
            while not self.ended:
                body = self.count.to_bytes(8, "big") * 16
                if ask(self.sock, body) != body:
                    raise ValueError("another answer")
                self.count += 1
        except (OSError, ValueError, EOFError) as error:
            self.fault = repr(error)

    def end(self) -> int:
        """The number of answers; each must have come."""
        self.ended = True
        self.join(10)
        assert self.fault == ""
        return self.count


def many(config: Row, count: int) -> Row:
    """The configuration with so many more listeners."""
    (listener,) = config["listeners"]
    return {**config, "listeners": [listener, *({**listener, "name": f"more-{number}"} for number in range(count))]}


def test_a_hundred_listeners_come_and_go_while_traffic_flows(tmp_path: Path, plain: Row) -> None:
    with Framegate(tmp_path, {**plain, "processors": 2}) as proxy:
        path = tmp_path / "framegate.yaml"
        talks = [Talk(proxy.connect("plain")) for _ in range(4)]
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
            assert reload(proxy) == "applied, 100 values changed"
            assert [item["name"] for item in proxy.json("listeners", "list")] == ["plain"]
        counts = [talk.end() for talk in talks]
        assert min(counts) > 100
        assert proxy.metric("framegate_config_differences") == 0
        print(f"100 listeners applied in {min(took):.2f} to {max(took):.2f} s with the command, {sum(counts)} frames meanwhile")
