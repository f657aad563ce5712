"""The surroundings of framegate change or fail under load: the container's size, names, the tap's disk.

About a minute each: a broker and two clients start in pods, and names are looked up every 30 s.
"""

import json
import os
import time
import urllib.request
from typing import Any

import pytest

from framegate.proxy.tap.completeness import verify
from tests.cluster import components
from tests.cluster.load import Load, Scene
from tests.cluster.node import ClusterError, wait_until
from tests.cluster.room import Room
from tests.cluster.workloads import CONFIGURATION
from tests.fakes.small_disk import fill

DISK_MIB = 24


def resize(room: Room, pod: str, **resources: dict[str, str]) -> None:
    """Ask for other ``limits``, or ``requests``, of the sidecar, as the page on Kubernetes says."""
    patch = {"spec": {"initContainers": [{"name": "framegate", "resources": resources}]}}
    room.kubectl("patch", "pod", pod, "--subresource", "resize", "--patch", json.dumps(patch))


def pool(room: Room, pod: str) -> tuple[int, int]:
    """How many processors there are, and the memory pool in bytes."""
    said = json.loads(room.framegate(pod, "pool", "get", "--output", "json"))
    return int(said["processor_pool"]["processor_count"]), int(said["memory_pool"]["size_bytes"])


def resized(scene: Scene, number: int) -> dict[str, Any]:
    """The row of a change of size, by its number from 0."""

    def found() -> dict[str, Any] | None:
        rows = [row for row in scene.room.rows(scene.pod) if row["event"] == "container_resized"]
        return rows[number] if len(rows) > number else None

    row: dict[str, Any] = wait_until(found, "a row container_resized", 45.0, 0.5)
    return row


def test_the_pool_and_the_processors_follow_a_pod_that_is_resized_in_place(room: Room) -> None:
    if os.environ.get(components.VERSION, components.NEWEST) in ("1.29", "1.33"):
        pytest.skip("this version does not decrease a pod's memory in place")
    scene = Scene(room)
    load = Load(scene)
    broker, before = scene.application(), scene.sidecar()
    small = pool(room, scene.pod)
    asked = time.monotonic()
    resize(room, scene.pod, limits={"cpu": "2", "memory": "1Gi"})
    up = resized(scene, 0)
    after = time.monotonic() - asked
    large = pool(room, scene.pod)
    assert (small[0], large[0]) == (1, 2)
    assert large[1] > 2 * small[1]
    assert (up["processors"]["before"], up["processors"]["after"]) == (1, 2)
    assert (up["memory_pool"]["after"], up["refused"]) == (large[1], None)
    scene.wait_traffic()
    resize(room, scene.pod, limits={"cpu": "1", "memory": "512Mi"})
    down = resized(scene, 1)
    assert pool(room, scene.pod) == small
    assert (down["memory_pool"]["after"], down["refused"]) == (small[1], None)
    with pytest.raises(ClusterError, match="enough allocatable resources"):  # the API server knows that no node has so many
        resize(room, scene.pod, limits={"cpu": "900"}, requests={"cpu": "900"})
    resize(room, scene.pod, limits={"memory": "24Mi"}, requests={"memory": "24Mi"})  # less than it has in use: the kubelet does not

    def refusal() -> str:
        conditions = room.get("pod", scene.pod)["status"]["conditions"]
        return next((item["message"] for item in conditions if item["type"] == "PodResizeInProgress" and item.get("reason") == "Error"), "")

    refused = wait_until(refusal, "the kubelet's refusal", 30.0, 0.5)
    scene.wait_traffic()
    outcome = load.end()
    assert (scene.application(), scene.sidecar()) == (broker, before)
    verdict = verify(str(scene.tap))
    assert verdict.faults == []
    assert [row for row in verdict.rows if row.state not in ("complete", "open")] == []
    print(f"\ncluster: resize in place: {small} to {large} processors and bytes, {after:.1f} s after it was asked for, and back; "
          f"24 MiB: {refused}; {outcome}")  # fmt: skip


def listed(room: Room, pod: str) -> list[dict[str, Any]]:
    """framegate's open connections."""
    found: list[dict[str, Any]] = json.loads(room.framegate(pod, "channels", "list", "--output", "json"))
    return found


def connections(room: Room, pod: str) -> list[str]:
    """The ids of framegate's open connections."""
    return [item["id"] for item in listed(room, pod)]


def test_without_names_connections_stay_and_new_ones_use_the_last_good_addresses(room: Room) -> None:
    scene = Scene(room)
    load = Load(scene, outbound=True)
    live = set(connections(room, load.pod))
    assert live
    room.node.stop_server("coredns")
    try:
        failed = scene.row("resolve_failed", 60.0, load.pod)
        scene.wait_traffic()
        assert live & set(connections(room, load.pod))
        ids = connections(room, load.pod)
        room.framegate(load.pod, "channels", "close", *ids)
        scene.wait_traffic()
        assert connections(room, load.pod)
        assert not live & set(connections(room, load.pod))
    finally:
        room.node.start_dns()
    scene.row("resolved", 60.0, load.pod)
    outcome = load.end()
    print(f"\ncluster: without names ({failed['error']}): records went on, also over new connections; {outcome}")


def metric(scene: Scene, name: str) -> float:
    """The sum of a metric of the sidecar, as Prometheus reads it."""
    with urllib.request.urlopen(f"http://{scene.address}:9464/metrics", timeout=5.0) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("on_full", ["drop", "mute"])
def test_a_full_disk_of_the_tap_costs_its_record_or_makes_the_traffic_wait_as_the_rule_says(room: Room, on_full: str) -> None:
    scene = Scene(room, CONFIGURATION.replace("capture: full", f"capture: full, on_full: {on_full}"), disk_mib=DISK_MIB)
    load = Load(scene)
    broker, before = scene.application(), scene.sidecar()
    fill(scene.tap / "ballast")
    if on_full == "drop":
        wait_until(lambda: metric(scene, "framegate_tap_dropped_total") > 100, "frames that the record lacks", 30.0, 0.2)
        scene.wait_traffic()
    else:
        wait_until(
            lambda: [row for row in listed(room, scene.pod) if "MUTE_CAUSE_TAP" in json.dumps(row)], "a connection that waits for the tap", 30.0, 0.3
        )
        size = scene.stored()
        time.sleep(1.0)
        assert scene.stored() == size
    (scene.tap / "ballast").unlink()
    scene.wait_traffic()

    def records_again() -> bool:
        before = metric(scene, "framegate_tap_dropped_total")
        for _ in range(3):
            scene.wait_traffic()
            time.sleep(0.3)
        return metric(scene, "framegate_tap_dropped_total") == before

    wait_until(records_again, "frames that are recorded again", 30.0)  # the disk is asked once more from time to time, not at each frame
    dropped = metric(scene, "framegate_tap_dropped_total")
    outcome = load.end()
    assert (scene.application(), scene.sidecar()) == (broker, before)
    room.kubectl("delete", "statefulset", "kafka", "--wait=false")
    wait_until(lambda: not room.pod("app=kafka") and not room.get("pods", "-l", "app=kafka")["items"], "the end of the broker's pod", 60.0, 0.5)
    verdict = verify(str(scene.tap))
    assert (verdict.faults, verdict.complete) == ([], on_full == "mute"), verdict.rows
    lost = sum(row.lost for row in verdict.rows)
    assert lost == dropped
    assert (lost > 100) == (on_full == "drop")
    for row in verdict.rows:
        assert (row.state, row.missing) == ("lost" if row.lost else "complete", 0)
        assert row.seen == row.stored + row.withheld + row.lost
    print(f"\ncluster: full disk, on_full: {on_full}: {lost} frames are counted as lost, {sum(row.stored for row in verdict.rows)} stored; {outcome}")
