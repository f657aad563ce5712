"""Commands over many pods, through a scripted kubectl whose pods are real admin servers, or worse."""

import contextlib
import json
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import _INJECTED, main
from framegate.control.cli.pods import AT_ONCE
from framegate.control.kubernetes.sidecar import CONTAINER, SIDECAR_LABEL
from tests.fakes.cases import each_of
from tests.fakes.cli import Cli, run_cli, served, start_cli
from tests.fakes.framegate import Framegate, alive, config_before
from tests.fakes.plane import channel_row
from tests.fakes.waiting import until

KUBECTL = """#!/bin/sh
printf '%s\\n' "$@" . >> {folder}/calls
case " $* " in *" get pods "*) exec cat {folder}/pods.json ;; esac
while [ "$1" != -- ]; do case "$1" in pod/*) pod="${{1#pod/}}" ;; esac; shift; done
shift 2
. "{folder}/pods/$pod"
"""
FRAMEGATE = f"{sys.executable} -P -m framegate.control.cli"
RUNNING = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}


def pod(name: str, container: str = CONTAINER, state: dict[str, Any] | None = None, kind: str = "init") -> dict[str, Any]:
    where, statuses = ("initContainers", "initContainerStatuses") if kind == "init" else ("containers", "containerStatuses")
    spec = {"containers": [{"name": "app"}], where: [{"name": container}]}
    status = {"phase": "Running", statuses: [{"name": container, "state": RUNNING if state is None else state}]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


class Cluster:
    """A folder with a ``kubectl`` whose pods do what their scripts say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[dict[str, Any]] = []
        (folder / "pods").mkdir()
        kubectl = folder / "kubectl"
        kubectl.write_text(KUBECTL.format(folder=folder))
        kubectl.chmod(0o755)
        self.path = f"{folder}:{os.environ['PATH']}"

    def add(self, name: str, script: str, **facts: Any) -> None:
        """A pod. ``script``: of sh; "$@" are the words behind ``framegate``."""
        (self.folder / "pods" / name).write_text(script)
        self.pods.append(pod(name, **facts))
        self.holds(self.pods)

    def holds(self, pods: list[dict[str, Any]]) -> None:
        (self.folder / "pods.json").write_text(json.dumps({"items": pods}))

    def calls(self) -> list[list[str]]:
        """The words of each call of kubectl."""
        return [call.splitlines() for call in (self.folder / "calls").read_text().split("\n.\n") if call]

    def __call__(self, *words: str) -> Result:
        return CliRunner(env={"PATH": self.path, "COLUMNS": "200"}).invoke(main, ("--kube", *words))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def three() -> Iterator[list[Cli]]:
    with served() as first, served() as second, served() as third:
        yield [first, second, third]


def real(address: str) -> str:
    return f'FRAMEGATE_ADDRESS={address} exec {FRAMEGATE} "$@"'


def prints(document: object) -> str:
    return f"cat <<'EOF'\n{json.dumps(document)}\nEOF\n"


def test_the_default_selector_is_the_label_of_injected_pods() -> None:
    assert f"{SIDECAR_LABEL}=true" == _INJECTED


def test_one_table_has_the_answers_of_all_pods(cluster: Cluster, three: list[Cli]) -> None:
    for number, cli in enumerate(three):
        cluster.add(f"orders-{number}", real(cli.address), kind=("init", "init", "main")[number])
        for at in range(number):
            cli.plane.add(channel_row(f"0-1-{at + 1}"))
    alone = three[2]("channels", "list").stdout.splitlines()
    listed = cluster("-l", "app=orders", "-n", "shop", "--context", "c", "channels", "list")
    assert (listed.exit_code, listed.stderr) == (0, "")
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[0] == ["POD", *alone[0].split()]
    assert [row[:2] for row in rows[1:]] == [["orders-1", "0-1-1"], ["orders-2", "0-1-1"], ["orders-2", "0-1-2"]]
    assert rows[2][1:-2] == alone[1].split()[:-2], "the cells are those of one framegate; ages may differ"

    three[0].plane.started, three[1].plane.troubles = False, ["warning: c", "the tap: loses"]
    state = cluster("status")
    assert [line.split()[:2] for line in state.stdout.splitlines()] == [
        ["POD", "STATE"], ["orders-0", "starting"], ["orders-1", "serving"], ["orders-2", "serving"]
    ]  # fmt: skip
    assert ("warning: c; warning: the tap: loses" in state.stdout, state.exit_code) == (True, 6)
    assert state.stderr == "framegate: orders-0: exit code 1\nframegate: 1 of 3 pods failed\n"
    first, *calls = cluster.calls()
    assert first == ["--context=c", "--namespace=shop", "get", "pods", "--selector=app=orders", "--output=json", "--request-timeout=30s"]
    words = ["exec", "pod/orders-0", "--container=framegate", "--", "framegate", "channels", "list", "--output", "json"]
    assert ["--context=c", "--namespace=shop", *words] in calls
    assert ["get", "pods", f"--selector={_INJECTED}", "--output=json", "--request-timeout=30s"] in calls


def test_json_has_the_document_of_each_pod_under_its_name(cluster: Cluster, three: list[Cli]) -> None:
    for number, cli in enumerate(three[:2]):
        cluster.add(f"orders-{number}", real(cli.address))
        cli.plane.add(channel_row(f"0-1-{number}"))
        cli.plane.add(channel_row("0-1-9"))
    cluster.add("other", "exit 99", container="envoy")
    found = cluster("channels", "list", "--limit", "1", "-o", "json")
    document = json.loads(found.stdout)
    assert [[row["id"] for row in document["pods"][f"orders-{number}"]] for number in (0, 1)] == [["0-1-0"], ["0-1-1"]]
    assert document["failed"] == {"other": "it has no container framegate"}
    assert (found.exit_code, "framegate: orders-1: more open channels exist than --limit 1\n" in found.stderr) == (6, True)


def test_each_pod_that_fails_is_named_with_the_reason(cluster: Cluster, three: list[Cli]) -> None:
    good = {"closed_connection_count": 1, "open_connection_count": 0}
    cluster.add("a-good", prints(good))
    cluster.add("b-newer", prints({**good, "new": 1, "accepting": True}))
    cluster.add("hangs", "sleep 60 & wait")
    cluster.add("refuses", "echo 'Error from server (Forbidden): pods is forbidden' >&2; exit 1")
    cluster.add("garbage", r"printf '\033[31mhello\n'")
    cluster.add("silent", "exit 0")
    cluster.add("other-form", "echo '[1]'")
    cluster.add("endless", "exec yes")
    cluster.add("older", "echo 'Usage: framegate drain\n\nError: No such option: --reason' >&2; exit 2")
    cluster.add("full", "exec 1>&2; echo 'framegate: a: b'; echo 'command terminated with exit code 4'; exit 4")
    cluster.add("waits", "exit 99", state={"waiting": {"reason": "CrashLoopBackOff"}})
    cluster.add("new", "exit 99", state={})
    found = cluster("--pod-timeout", "700ms", "drain", "--yes", "--no-wait", "--reason", "r")
    assert [line.split(maxsplit=1) for line in found.stdout.splitlines()] == [
        ["POD", "RESULT"],
        ["a-good", "drained: 1 connection ended, none left"],
        ["b-newer", "not ready; connections are accepted until SIGTERM, and those of other pods end one by one"],
    ]
    expected = {
        "endless": "it did not answer within 0.7 s; the change may have taken effect",
        "full": "a: b (exit code 4)",
        "garbage": r"it printed no JSON: '\x1b[31mhello\n'",
        "hangs": "it did not answer within 0.7 s; the change may have taken effect",
        "new": "its container framegate does not run (not started; the pod is Running)",
        "older": "its framegate is of another version, which does not take this command line: No such option: --reason",
        "other-form": "its answer cannot be read; it is of another version of framegate: AttributeError: 'list' object has no attribute 'get'",
        "refuses": "Error from server (Forbidden): pods is forbidden (exit code 1)",
        "silent": "it printed nothing",
        "waits": "its container framegate does not run (waiting: CrashLoopBackOff; the pod is Running)",
    }
    *lines, last = found.stderr.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == list(expected)
    for line, (name, words) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"framegate: {name}: {words}"), line
    assert (last, found.exit_code) == ("framegate: 10 of 12 pods failed", 6)
    cluster.holds([pod("silent"), pod("hangs")])
    assert cluster("--pod-timeout", "100ms", "status").exit_code == 5, "no pod gave an answer"


def test_no_pods_and_no_kubectl_have_codes_of_their_own(cluster: Cluster, tmp_path: Path) -> None:
    cluster.holds([])
    none = cluster("-l", "app=x", "status")
    assert (none.exit_code, none.stderr) == (3, "framegate: no pods match app=x\n")
    for script, said in (("exit 7", "kubectl get pods ended with exit code 7"), ("echo 5", "kubectl get pods printed no list of pods")):
        (cluster.folder / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
        broken = cluster("status")
        assert (broken.exit_code, broken.stderr) == (5, f"framegate: {said}\n")
    (tmp_path / "empty").mkdir()
    cluster.path = str(tmp_path / "empty")
    assert (cluster("status").exit_code, cluster("status").stderr) == (5, "framegate: kubectl cannot be started: No such file or directory\n")


def test_names_are_words_of_no_shell_and_escaped_on_a_terminal(cluster: Cluster) -> None:
    names = ["-rf", "$(touch owned)", "a b'c\"", "orders.v2-0", "x\x1b[2J", "\u00e9"]
    for name in names:
        cluster.add(name, prints([]))
    assert list(json.loads(cluster("channels", "list", "-o", "json").stdout)["pods"]) == sorted(names)
    assert cluster("channels", "list").stderr == "framegate: nothing to show: 6 pods answered\n"
    for name in names:
        cluster.add(name, prints({"closed_connection_count": 0, "open_connection_count": 1}))
    text = cluster("-l", "--all;x in (a,b)", "-n", "-n", "drain", "--yes").stdout
    assert ("$(touch owned)" in text, "x\\x1b[2J" in text, "\x1b" in text, Path("owned").exists()) == (True, True, False, False)
    assert "--selector=--all;x in (a,b)" in cluster.calls()[-len(names) * 2 - 1]


def test_of_200_pods_at_most_16_are_asked_at_a_time(cluster: Cluster) -> None:
    log = cluster.folder / "log"
    for number in range(200):
        (cluster.folder / "pods" / f"orders-{number}").write_text(f"echo + >> {log}; sleep 0.05; echo - >> {log}; echo '[]'")
    cluster.holds([pod(f"orders-{number}") for number in range(200)])
    found = cluster("channels", "list", "-o", "json")
    assert (found.exit_code, len(json.loads(found.stdout)["pods"])) == (0, 200)
    running = most = 0
    for sign in log.read_text().split():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert 2 <= most <= AT_ONCE


@each_of(
    "words",
    [("limits", "get"), ("serve",), ("channels", "describe", "0-1-1"), ("channels", "list", "--watch"), ("drain",), ("status", "--no-such"), ()],
)
def test_what_is_not_possible_over_pods_is_wrong_usage(words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.add("orders-0", "exit 99")
    assert cluster(*words).exit_code == 2
    assert not any("exec" in call for call in cluster.calls()) if (cluster.folder / "calls").exists() else True


def test_options_of_pods_need_kube() -> None:
    found = CliRunner().invoke(main, ("-l", "app=x", "--pod-timeout", "1s", "status"))
    assert (found.exit_code, "--selector, --pod-timeout need" in found.stderr) == (2, True)


def asked(cluster: Cluster, answer: str) -> tuple[int, str, str]:
    """``drain`` with a terminal at which an answer is typed."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        with start_cli("--kube", "drain", stdin=theirs, environment={"PATH": cluster.path}) as process:
            out, err = process.communicate(timeout=30)
            return process.returncode, out, err
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_drain_asks_at_a_terminal(cluster: Cluster) -> None:
    for number in range(12):
        cluster.add(f"orders-{number:02}", prints({"closed_connection_count": 0, "open_connection_count": 0}))
    code, out, err = asked(cluster, "n\n")
    assert (code, out) == (1, "")
    assert "Drain framegate in 12 pods (orders-00," in err
    assert "orders-09 and 2 more)?" in err
    assert err.endswith("framegate: nothing was changed\n")
    assert len(cluster.calls()) == 1
    code, out, _ = asked(cluster, "y\n")
    assert (code, len(out.splitlines())) == (0, 13)


@pytest.mark.slow
def test_ctrl_c_ends_the_calls_of_kubectl(cluster: Cluster) -> None:
    cluster.add("orders-0", f"echo $$ > {cluster.folder}/pid; sleep 60 & wait")
    with start_cli("--kube", "drain", "--yes", environment={"PATH": cluster.path}) as process:
        pid = int(until(lambda: (path := cluster.folder / "pid").exists() and path.read_text().strip()))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "framegate: interrupted; the change may have taken effect\n")
    assert not alive(pid)


@pytest.mark.slow
def test_three_real_framegates_are_drained(cluster: Cluster, tmp_path: Path) -> None:
    runs: list[Framegate] = []
    with contextlib.ExitStack() as stack:
        for number in range(3):
            runs.append(stack.enter_context(Framegate(tmp_path / f"run-{number}", config_before("127.0.0.1:9"), wait=False)))
            cluster.add(f"orders-{number}", real(f"unix:{runs[-1].folder}/admin.sock"))
        for run in runs:
            run.wait_row(lambda row: row["event"] == "serving", timeout=20)
        code, out, err = run_cli("--kube", "drain", "--yes", "--timeout", "5s", "--reason", "test", environment={"PATH": cluster.path})
        assert (code, err) == (0, "")
        assert [line.split(maxsplit=1)[1] for line in out.splitlines()[1:]] == ["drained: 0 connections ended, none left"] * 3
