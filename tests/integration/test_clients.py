"""Who uses most, and whose logins fail, over real processes: in `top`, in `status`, and in a scrape."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.fakes.framegate import Framegate, until
from tests.fakes.sasl_frames import handshake, token
from tests.fakes.upstream import ScriptedUpstream, ask, frame, read_to_end

CLIENTS = 50
NAMES = 200


def _fail(proxy: Framegate, user: str) -> None:
    """One login with a wrong password."""
    with proxy.connect("kafka") as client:
        ask(client, handshake("PLAIN"))
        client.sendall(frame(token(f"\0{user}\0wrong".encode())))
        read_to_end(client)


@pytest.mark.extended
@pytest.mark.slow  # the window is a minute
@pytest.mark.timeout(300)
def test_a_noisy_client_among_fifty_and_an_address_that_tries_many_names_are_named_within_a_minute_and_leave(tmp_path: Path) -> None:
    upstream, over = ScriptedUpstream(), threading.Event()
    with changing(tmp_path / "users") as users:
        users.add("ann", new_credentials("secret", iterations=4096))
    common = {"address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB"}
    sasl = {"protocol": "kafka", "timeouts": {"failed_authentication": "0ms"}, "sasl": {"mechanisms": ["PLAIN"], "users": "users"}}
    config = {
        "processors": 2,
        "listeners": [{"name": "plain", **common}, {"name": "kafka", **common, **sasl}],
        "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
    }
    with Framegate(tmp_path, config) as proxy:
        ends = [(f"127.0.0.{number + 1}", 0) for number in range(CLIENTS)]  # those of one address and no name are one client
        clients = [socket.create_connection(proxy.address("plain"), 10.0, end) for end in ends]

        def be_noisy() -> None:
            while not over.is_set():
                ask(clients[0], bytes(100_000))

        noisy = threading.Thread(target=be_noisy)
        noisy.start()
        for number in range(NAMES):
            ask(clients[number % (CLIENTS - 1) + 1], b"quiet")
            _fail(proxy, f"user-{number}")

        def firsts() -> dict[str, Any]:
            found = proxy.json("top", "--every", "20ms")["rankings"]
            return {item["measure"].removeprefix("CLIENT_MEASURE_"): item["clients"][0] for item in found if item["clients"]}

        def is_ranked() -> bool:
            found = firsts()
            return "BYTES" in found and found.get("LOGINS", {}).get("principal") == "<many>"  # the first sample may have one name only

        until(is_ranked, "they are not ranked", 40)
        first = firsts()
        assert (first["BYTES"]["listener"], first["BYTES"]["address"]) == ("plain", "127.0.0.1")
        assert first["BYTES"]["value"] > 100_000
        tried = first["LOGINS"]
        assert (tried["listener"], tried["principal"], tried["address"]) == ("kafka", "<many>", "127.0.0.1")
        until(lambda: "Logins of many users fail, from one address (kafka <many> 127.0.0.1)" in proxy.cli("status").stdout, "it is not said", 40)
        assert "One client has more than half of a listener's bytes (plain ANONYMOUS 127.0.0.1)" in proxy.cli("status").stdout
        labels = {"framegate_listener": "kafka", "framegate_principal": "<many>", "client_address": "127.0.0.1"}
        assert proxy.metric("framegate_client_login_failures_per_second", **labels) > 0
        over.set()
        noisy.join()
        until(lambda: proxy.metric("framegate_client_login_failures_per_second") == 0, "they stay", 90)
        assert not [name for name in proxy.metrics() if "<many>" in name], "no series is left behind"
        for client in clients:
            client.close()
    upstream.close()
