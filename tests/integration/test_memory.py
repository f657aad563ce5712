"""What a user sees of memory: who holds it, in `pool get`, and whether it fits, in `status` and `check`; over real processes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, frame, peer_name

KIB = 1024
MIB = 1024 * KIB


class Deaf:
    """An upstream that reads nothing until it is told to."""

    def __init__(self) -> None:
        self.hears = threading.Event()
        self.upstream = ScriptedUpstream(self._serve)

    def _serve(self, sock: Any) -> None:
        self.hears.wait(30)
        while sock.recv(65536):
            pass

    def close(self) -> None:
        self.hears.set()
        self.upstream.close()


@pytest.fixture(scope="module")
def deaf() -> Iterator[Deaf]:
    made = Deaf()
    yield made
    made.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, deaf: Deaf) -> Iterator[Framegate]:
    config = {
        "processors": 2,
        "memory_pool": {"size": "64MiB", "shares": {"plain": 60, "other": 20}},
        "listeners": [
            {"name": "plain", "address": "127.0.0.1:0", "upstream": "deaf", "max_receive_size": "16MiB"},
            {
                "name": "other",
                "address": "127.0.0.1:0",
                "upstream": "deaf",
                "max_receive_size": "1MiB",
                "forwarding": {"requests": "cut_through", "responses": "whole"},
            },
        ],
        "upstreams": [{"name": "deaf", "endpoints": [deaf.upstream.address], "max_receive_size": "32MiB"}],
        "tap": {"directory": "tap"},
    }
    with Framegate(tmp_path_factory.mktemp("framegate"), config) as running:
        yield running
        deaf.hears.set()


@pytest.mark.extended
@pytest.mark.slow
def test_those_who_hold_memory_are_named_with_what_they_hold(proxy: Framegate) -> None:
    with proxy.connect("plain") as begun, proxy.connect("plain") as pending:
        begun.sendall(frame(bytes(4 * MIB))[: 2 * MIB])
        names = {peer_name(client): client for client in (begun, pending)}
        sender = threading.Thread(target=pending.sendall, args=(frame(bytes(12 * MIB)),))
        sender.start()
        wanted = {("downstream", "KIND_BEGUN"), ("upstream", "KIND_PENDING")}
        found: dict[tuple[str, str], Any] = {}
        while not wanted <= set(found) or found["downstream", "KIND_BEGUN"]["held_bytes"] < 2 * MIB:
            answer = proxy.json("pool", "get")
            found = {(item["side"].removeprefix("SIDE_").lower(), item["kind"]): item for item in answer["holders"] if item["held_bytes"] > MIB}
        peers = {item["id"]: item["peer_address"] for item in proxy.json("channels", "list")}
        assert names[peers[found["downstream", "KIND_BEGUN"]["channel_id"]]] is begun
        assert names[peers[found["upstream", "KIND_PENDING"]["channel_id"]]] is pending
        assert found["downstream", "KIND_BEGUN"]["peer_address"] in names
        pool = proxy.json("pool", "get", "--top", "0")["memory_pool"]
        while pool["begun_bytes"] < 2 * MIB or pool["pending_bytes"] == 0:  # the cells are written by the loops when they turn
            pool = proxy.json("pool", "get", "--top", "0")["memory_pool"]
        assert pool["usage_bytes"] == sum(pool[f"{kind}_bytes"] for kind in ("begun", "pending", "tls"))
        assert (pool["guaranteed_percents"], pool["tap_bytes"], pool["tap_limit_bytes"]) == ({"plain": 60, "other": 20}, 0, 16 * MIB)
        assert proxy.metric("framegate_memory_pool_usage_bytes", framegate_memory_kind="begun") >= 2 * MIB
        names_of_metrics = {name.partition("{")[0] for name in proxy.metrics()}
        assert names_of_metrics >= {"framegate_memory_pool_waiting", "framegate_memory_pool_evicted_total", "framegate_frame_cut_short_total"}
        text = proxy.cli("pool", "get").stdout
        assert "guaranteed: other 20 %, plain 60 %" in text
        assert "tap queues 0 B of 16 MiB" in text
        for client in names.values():
            client.shutdown(2)
        sender.join(10)


@pytest.mark.extended
@pytest.mark.slow
def test_how_large_frames_pass_is_listed_and_what_must_fit_is_refused_at_run_time(proxy: Framegate) -> None:
    ways = {item["name"]: (item["request_forwarding"], item["response_forwarding"]) for item in proxy.json("listeners", "list")}
    assert ways == {"plain": ("FORWARDING_WHOLE", "FORWARDING_CUT_THROUGH"), "other": ("FORWARDING_CUT_THROUGH", "FORWARDING_WHOLE")}
    assert proxy.cli("limits", "set", "--listener", "other", "--max-receive-size", "1GiB").returncode == 0
    refused = proxy.cli("limits", "set", "--listener", "plain", "--max-receive-size", "33MiB")
    assert (refused.returncode, "POOL_BELOW_MAX_RECEIVE_SIZE" in refused.stderr) == (1, True)
    refused = proxy.cli("pool", "set", "--size", "63MiB")
    assert (refused.returncode, "largest frame of 32MiB" in refused.stderr) == (1, True)
    assert proxy.cli("pool", "set", "--processors", "3").returncode == 1
    assert proxy.json("pool", "get")["memory_pool"]["guaranteed_percents"] == {"plain": 60, "other": 20}
