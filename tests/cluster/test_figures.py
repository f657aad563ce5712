"""What the sidecar costs on the node: the time to its readiness, its memory when idle, and what a produce request waits longer; Envoy beside it."""

import datetime
import json
import os
import re
from pathlib import Path
from typing import Any

from tests.cluster.images import KAFKA
from tests.cluster.node import Node
from tests.cluster.room import Room
from tests.cluster.sidecars import certificates, component
from tests.cluster.workloads import CONFIGURATION, broker, restricted_container, service

READY_S = 1.0
MEMORY_MIB = 64.0
MOST_MIB = 80.0
ENVOY = {
    "static_resources": {
        "listeners": [
            {
                "address": {"socket_address": {"address": "0.0.0.0", "port_value": 9095}},
                "filter_chains": [
                    {
                        "filters": [
                            {
                                "name": "envoy.filters.network.tcp_proxy",
                                "typed_config": {
                                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                                    "stat_prefix": "broker",
                                    "cluster": "broker",
                                },
                            }
                        ]
                    }
                ],
            }
        ],
        "clusters": [
            {
                "name": "broker",
                "type": "STATIC",
                "load_assignment": {
                    "cluster_name": "broker",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 9092}}}}]}],
                },
            }
        ],
    }
}
PLAINTEXT = re.sub(r"^    tls:.*\n|^  rules:.*\n|^tap:\n|^  directory:.*\n|^  budget:.*\n", "", CONFIGURATION, flags=re.MULTILINE)
"""The same without TLS and without the tap: what Envoy does as well."""


def processes_of(node: Node, uid: str, program: str) -> list[int]:
    """Processes of a pod whose command line has a word, by the pod's group."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                mine = uid in (folder / "cgroup").read_text() or uid.replace("-", "_") in (folder / "cgroup").read_text()
                words = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has ended
                continue
            if mine and program in words:
                found.append(int(folder.name))
    return found


def started(process: int) -> float:
    """When a process began: seconds of the epoch."""
    ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def proportional_mib(processes: list[int]) -> float:
    """What these processes have resident; a page that several share counts for each in part."""
    text = "".join(Path(f"/proc/{process}/smaps_rollup").read_text() for process in processes)
    return sum(int(size) for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)) / 1024


def envoy_container() -> dict[str, Any]:
    """Envoy as a TCP proxy, with one worker."""
    words = ["--config-path", "/etc/envoy/envoy.json", "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    mounts = [{"name": "envoy", "mountPath": "/etc/envoy"}]
    return {
        "name": "envoy",
        "image": KAFKA,
        "command": ["/kafka/envoy"],
        "args": words,
        "volumeMounts": mounts,
        "securityContext": restricted_container(),
    }


def beside_envoy() -> list[dict[str, Any]]:
    """The broker's pod with Envoy in it, and Envoy's configuration."""
    workload = broker("127.0.0.1:9093")
    pod = workload["spec"]["template"]["spec"]
    pod["containers"].append(envoy_container())
    pod["volumes"].append({"name": "envoy", "configMap": {"name": "envoy"}})
    return [workload, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "envoy"}, "data": {"envoy.json": json.dumps(ENVOY)}}]


def test_time_to_readiness_memory_and_added_latency_beside_envoy(room: Room) -> None:
    certificates(room)
    component(room, PLAINTEXT, *beside_envoy(), service())
    pod = room.wait_ready("app=kafka")
    uid = room.get("pod", pod)["metadata"]["uid"]
    ours, theirs = processes_of(room.node, uid, "framegate"), processes_of(room.node, uid, "/kafka/envoy")
    assert len(theirs) == 1
    (serving,) = [row for row in room.rows(pod) if row["event"] == "serving"]
    ready = timestamp(serving["time"]) - min(started(process) for process in ours)
    memory, envoy = proportional_mib(ours), proportional_mib(theirs)
    ways = ["none=127.0.0.1:9092", "framegate=127.0.0.1:9093", "envoy=127.0.0.1:9095"]
    said = json.loads(room.kubectl("exec", pod, "-c", "main", "--", "/opt/framegate/bin/python", "/kafka/latency.py", *ways, timeout_s=300.0))
    added = {name: {cut: said[name][cut] - said["none"][cut] for cut in ("p50_us", "p99_us")} for name in ("framegate", "envoy")}
    print(
        f"\ncluster: ready {ready:.2f} s after its container's start; idle {memory:.1f} MiB proportional in {len(ours)} processes, Envoy {envoy:.1f}"
    )
    print(f"cluster: a produce request takes {said['none']}, and longer by {added}")
    # told, not judged: the machine may be busy, and the second goal was not met when this was written (70 MiB)
    print(f"cluster: ready within {READY_S:g} s: {word(ready <= READY_S)}; at most {MEMORY_MIB:g} MiB: {word(memory <= MEMORY_MIB)}")
    assert memory <= MOST_MIB


def word(is_met: bool) -> str:
    """For the figures' goals."""
    return "met" if is_met else "missed"


def timestamp(text: str) -> float:
    """Seconds of the epoch of a row's time."""
    return datetime.datetime.fromisoformat(text).timestamp()
