"""A rolling update under load loses no request, also of clients that do not try again; the former recipe, without a drain, as a comparison.

Clients are in a pod and reach the Service through kube-proxy. ``make cluster-test`` runs the cases that are not marked ``extended``;
``ARGS=tests/cluster/test_rolling_update.py`` runs all.

A client that looks whether its connection has ended, stands still as on a busy machine, and sends only then, may find that framegate has taken it for
one that waits. Such a request counts as late (``programs/rolling.py``), and is printed with both times.
"""

import dataclasses
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cluster import processes
from tests.cluster.images import KAFKA
from tests.cluster.node import NODE_ADDRESS, Node, wait_until
from tests.cluster.room import Room
from tests.cluster.test_chart import install, labelled, uninstall
from tests.cluster.workloads import certificates, client_pod, document, injected, last_line, restricted_container, restricted_pod, service
from tests.fakes.s3 import s3_server

CONFIGURATION = """\
node: rolled
admin: {{address: "unix:/run/framegate/admin.sock"}}
health: {{address: "0.0.0.0:9901"}}
processors: 0
memory_pool: {{size: 0}}
listeners:
  - {{name: kafka, address: "0.0.0.0:9093", protocol: kafka, max_receive_size: 1MiB, upstream: app, tls: {{certificate: {tls}.crt, key: {tls}.key}}}}
  - {{name: framed, address: "0.0.0.0:9094", max_receive_size: 1MiB, upstream: app, tls: {{certificate: {tls}.crt, key: {tls}.key}}}}
upstreams: [{{name: app, endpoints: ["127.0.0.1:9190"]}}]
drain: {drain}
"""
SHIPPING = """\
tap:
  directory: /var/lib/framegate/tap
  segment_age: 5s
  rules: [{name: all, capture: full}]
  ship: {to: "s3://taps/shop", interval: 2s}
"""
ANSWERS = "import socket; socket.create_connection(('127.0.0.1', 9190), 1).close()"
SCRIPTED = 16  # connections of scripted clients
WHOLE_S = 1.0  # kube-proxy runs so long between two stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How pods end."""

    replicas: int = 2  # of the Deployment
    drain: str = "{}"  # framegate's
    grace_s: int = 0  # terminationGracePeriodSeconds; 0: as ``inject`` writes it
    lasts_s: int = 0  # from SIGTERM to the application's end
    late_s: float = 0.0  # kube-proxy learns of a change so much later, at most
    cpu: str = "1"  # framegate's limit
    sleep_s: int = 0  # the former recipe: both containers' preStop is a sleep, and framegate does not drain; 0: as ``inject`` writes it


CASES = {
    "as inject writes it": Recipe(),
    "grace 30 s, late endpoints, slow end": Recipe(replicas=3, drain="{delay: 5s, timeout: 12s}", grace_s=30, lasts_s=5, late_s=4.0),
    "former recipe": Recipe(drain="{timeout: 0s}", sleep_s=5),
}
EXTENDED = {
    "as inject writes it, three pods": Recipe(replicas=3, late_s=4.0),
    "grace 15 s": Recipe(replicas=3, drain="{delay: 1s, timeout: 2s, quiet: 200ms}", grace_s=15),
    "grace 20 s": Recipe(replicas=3, drain="{delay: 3s, timeout: 5s}", grace_s=20),
    "a tenth of a CPU": Recipe(drain="{delay: 5s, timeout: 12s}", cpu="100m"),
    "endpoints later than the delay": Recipe(drain="{delay: 1s, timeout: 12s}", late_s=6.0),
    "former recipe, three pods": Recipe(replicas=3, drain="{timeout: 0s}", sleep_s=5),
}


def deployment(recipe: Recipe) -> dict[str, Any]:
    """The application, which starts after framegate and is ready when it answers."""
    container = {
        "name": "main",
        "image": KAFKA,
        "imagePullPolicy": "Never",
        "args": ["/kafka/rolling.py", "serve", "--lasts", str(recipe.lasts_s)],
        "securityContext": restricted_container(),
        "startupProbe": {"exec": {"command": ["/opt/framegate/bin/python", "-c", ANSWERS]}, "periodSeconds": 1, "failureThreshold": 60},
    }
    pod: dict[str, Any] = {"securityContext": restricted_pod(), "containers": [container]}
    if recipe.grace_s:
        pod["terminationGracePeriodSeconds"] = recipe.grace_s
    spec = {
        "replicas": recipe.replicas,
        "selector": {"matchLabels": {"app": "rolled"}},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": {"app": "rolled"}}, "spec": pod},
    }
    return document("Deployment", "rolled", spec, "apps/v1")


def configuration(recipe: Recipe) -> str:
    return CONFIGURATION.format(drain=recipe.drain, tls="/tls/tls")


def manifests(room: Room, recipe: Recipe) -> list[dict[str, Any]]:
    """What is applied: what ``inject`` writes, or the former recipe."""
    found = documents_of(injected(room, configuration(recipe), deployment(recipe), options=("--cpu", recipe.cpu)))
    if recipe.sleep_s:
        (pod,) = [item["spec"]["template"]["spec"] for item in found if item["kind"] == "Deployment"]
        for container in [*pod["initContainers"], *pod["containers"]]:
            container["lifecycle"] = {"preStop": {"sleep": {"seconds": recipe.sleep_s}}}
    return found


def documents_of(text: str) -> list[dict[str, Any]]:
    return [item for each in YAML(typ="safe").load_all(text) for item in each.get("items", [each])]


@contextmanager
def late(node: Node, seconds: float) -> Iterator[None]:
    """kube-proxy stands still, so long at a time."""
    over = threading.Event()

    def pause() -> None:
        while not over.is_set():
            node.send_signal("kube-proxy", signal.SIGSTOP)
            over.wait(seconds)
            node.send_signal("kube-proxy", signal.SIGCONT)
            over.wait(WHOLE_S)

    thread = threading.Thread(target=pause)
    if seconds:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if seconds:
            thread.join()


def pods(room: Room) -> set[str]:
    return {pod["metadata"]["name"] for pod in room.get("pods", "-l", "app=rolled")["items"]}


def start_clients(room: Room) -> str:
    """Start the clients, and wait until each has an answer; their pod."""
    spec = client_pod("ask")
    spec["containers"][0]["args"] = ["/kafka/rolling.py", "ask"]
    room.apply(document("Job", "load", {"backoffLimit": 0, "template": {"metadata": {"labels": {"app": "load"}}, "spec": spec}}, "batch/v1"))
    name = room.wait_ready("app=load")
    wait_until(lambda: "asking" in room.kubectl("logs", name), "an answer for each client", 60.0, 0.5)
    return name


def roll(
    room: Room, node: Node, recipe: Recipe, documents: list[dict[str, Any]], meanwhile: Callable[[], object] = bool
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Update the Deployment under load, and wait for the end of its former pods. ``documents``: with the Deployment; its Service is added.
    ``meanwhile``: called when the update begins, in another thread. Returns: What became of the clients' requests, and the former pods' rows.
    """
    status = ["rollout", "status", "deployment/rolled", "--timeout=300s"]
    ports = [{"name": name, "port": port, "targetPort": port} for name, port in (("kafka", 9093), ("framed", 9094))]
    room.apply(*documents, service(selector={"app": "rolled"}, ports=ports))
    room.kubectl(*status, timeout_s=310.0)
    load = start_clients(room)
    before, logs = pods(room), room.folder / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        for pod in before:
            file = stack.enter_context((logs / pod).open("wb"))
            follow = room.kubectl_command("logs", "--follow", pod, "-c", "framegate")
            stack.enter_context(subprocess.Popen(follow, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
        with late(node, recipe.late_s), ThreadPoolExecutor() as pool:
            done = pool.submit(meanwhile)
            room.kubectl("rollout", "restart", "deployment/rolled")
            room.kubectl(*status, timeout_s=310.0)
            wait_until(lambda: not before & pods(room), "the end of the former pods", 120.0, 0.5)
            done.result()
    os.kill(processes.life(room, load).pid, signal.SIGTERM)
    said = last_line(room.wait_job("load", 100.0))
    return said, [json.loads(line) for pod in before for line in (logs / pod).read_text().splitlines() if line.startswith("{")]


def check(name: str, said: dict[str, dict[str, Any]], rows: list[dict[str, Any]], *, compared: bool = False) -> None:
    """Print what became of the requests; nothing was lost, unless it is the recipe to compare with."""
    for kind, line in said.items():
        print(f"rolling update: {name}: {kind}: {json.dumps(line)}")
    assert all(line["sent"] > 100 for line in said.values())
    if compared:
        return
    closed = [row for row in rows if row["event"] == "closed"]
    drained = [row for row in closed if row["cause"] == "drained"]
    for row in closed:
        if row["cause"] not in ("drained", "peer_closed", "no_data"):
            print(f"rolling update: {name}: {json.dumps(row)}")
    assert {kind: line for kind, line in said.items() if any(line[fault] for fault in ("lost", "broken", "silent", "connect_failed"))} == {}
    assert {row["cause"] for row in closed} <= {"drained", "peer_closed", "no_data"}
    assert [row for row in drained if "lost" in row or row["frames"]["request"] != row["frames"]["response"]] == [], "all that was read"
    assert len(drained) >= SCRIPTED


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.extended) for name in EXTENDED)])
def test_a_rolling_update_loses_no_request(room: Room, node: Node, name: str) -> None:
    certificates(room)
    recipe = {**CASES, **EXTENDED}[name]
    check(f"{name}, {recipe.replicas} replicas", *roll(room, node, recipe, manifests(room, recipe)), compared=recipe.sleep_s > 0)


def test_replicas_ship_a_complete_record_of_pods_that_run_and_of_pods_that_ended(room: Room, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates(room)
    recipe = Recipe(drain="{delay: 1s, timeout: 2s}")
    text = configuration(recipe).replace("node: rolled\n", "") + SHIPPING
    with s3_server(monkeypatch, NODE_ADDRESS) as s3:
        room.kubectl("create", "secret", "generic", "taps", *(f"--from-literal={name}={value}" for name, value in s3.environment().items()))
        said, rows = roll(room, node, recipe, documents_of(injected(room, text, deployment(recipe), options=("--env-secret", "taps"))))
        asked = sum(row["frames"]["request"] for row in rows if row["event"] == "closed")
        assert asked > 100, said
        running = pods(room)

        def verify(*words: str) -> str:
            return room.command("framegate", "tap", "verify", "s3://taps/shop", *words).stdout

        def verified() -> Any:
            found = json.loads(verify("--output", "json"))
            return found if {minute["state"] for minute in found["minutes"]} == {"complete"} else None

        found = wait_until(verified, "a complete record", 120.0, 2.0, verify)
        assert (found["complete"], found["faults"]) == (True, [])
        states = {item["name"]: item["state"] for item in found["nodes"]}
        assert {name for name, state in states.items() if state == "running"} == running
        assert sorted(states.values()) == ["running", "running", "stopped", "stopped"]


@pytest.mark.extended
def test_an_upgrade_of_the_chart_during_a_rolling_update_loses_no_request(room: Room, node: Node) -> None:
    certificates(room)
    recipe = Recipe(drain="{delay: 5s, timeout: 12s}")
    install(room, configuration(recipe))
    try:
        changed = configuration(recipe).replace("node: rolled", "node: changed")
        check("webhook", *roll(room, node, recipe, [labelled(deployment(recipe))], lambda: install(room, changed)))
        assert all("framegate.io/configuration" in pod["metadata"]["annotations"] for pod in room.get("pods", "-l", "app=rolled")["items"])
    finally:
        uninstall(room)
