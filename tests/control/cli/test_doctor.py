"""``framegate doctor`` as it is typed."""

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.doctor.finding import AREAS, LEVELS
from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority
from tests.fakes.cli import start_cli
from tests.fakes.framegate import Framegate
from tests.fakes.privileges import everybodys_folder
from tests.fakes.upstream import ScriptedUpstream, echo, refusing_port


def write(folder: Path, endpoint: str, **keys: Any) -> str:
    data = {
        "node": "n",
        "processors": 1,
        "admin": {"address": f"unix:{folder}/admin.sock"},
        "listeners": [{"name": "in", "address": "127.0.0.1:0", "upstream": "up", "max_receive_size": "1MiB"}],
        "upstreams": [{"name": "up", "endpoints": [endpoint]}],
        **keys,
    }
    (folder / "f.yaml").write_text(json.dumps(data))
    return str(folder / "f.yaml")


def run(*words: str) -> tuple[int, str, str]:
    """In this process; what depends on a process of its own starts one."""
    done = CliRunner().invoke(main, ["doctor", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def rows(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["findings"])


def test_the_document_is_one_and_says_what_was_looked_at(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(echo)
    path = write(tmp_path, upstream.address)
    code, out, err = run("--config", path, "--output", "json")
    upstream.close()
    document = json.loads(out)
    assert set(document) == {"format", "version", "time", "config", "address", "level", "counts", "findings"}
    assert (document["config"], document["address"], document["format"]) == (path, f"unix:{tmp_path}/admin.sock", 1)
    assert tuple(document["counts"]) == LEVELS
    assert {row["area"] for row in document["findings"]} == set(AREAS)
    assert all(tuple(row) == ("area", "subject", "level", "found", "advice", "figures") for row in document["findings"])
    assert all(row["advice"] for row in document["findings"] if row["level"] in ("fault", "warning"))
    assert (code, "fault" in err, document["counts"]["fault"]) == (0, True, 0)


def test_lines_for_people_have_what_to_do_below(tmp_path: Path) -> None:
    with refusing_port() as port:
        code, out, err = run("--config", write(tmp_path, f"127.0.0.1:{port}"))
    lines = out.splitlines()
    assert lines[0] == f"fault    upstreams      up, 127.0.0.1:{port}: no process listens there"
    assert lines[1].strip() == "→ start it, or correct the address in endpoints"
    assert (code, err.startswith("framegate: 1 fault, ")) == (1, True)
    assert re.fullmatch(r"framegate: 1 fault, (1 warning|(0|[2-9]|\d\d) warnings), \d+ unknown, \d+ ok\n", err)


def test_exit_codes_are_those_of_the_worst(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(echo)
    good = write(tmp_path, upstream.address, drain={"timeout": "30s"})
    spare = {"upstreams": [{"name": "up", "endpoints": [upstream.address]}, {"name": "spare", "endpoints": [upstream.address]}]}
    assert run("--config", good)[0] == 0
    odd = write(tmp_path, upstream.address, **spare)
    assert run("--config", odd)[0] == 0
    assert run("--config", odd, "--strict")[0] == 1
    upstream.close()
    assert run("--config", good, "--timeout", "1s")[0] == 1


@each_of(
    "words",
    [
        ("--config", "/nowhere.yaml"),
        ("--timeout", "99ms"),
        ("--timeout", "11m"),
        ("--timeout", "x"),
        ("--output", "xml"),
        ("--address", "x"),
        ("more",),
    ],
)
def test_wrong_usage_is_2(words: tuple[str, ...]) -> None:
    code, out, err = run(*words)
    assert (code, out, "Usage:" in err) == (2, "", True)


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """While it waits for a peer that says nothing; nothing is left behind."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listeners = [{"name": "in", "address": "127.0.0.1:0", "upstream": "up", "protocol": "kafka", "max_receive_size": "1MiB"}]
        (tmp_path / "tap").mkdir()
        path = write(tmp_path, f"127.0.0.1:{listener.getsockname()[1]}", listeners=listeners, tap={"directory": str(tmp_path / "tap")})
        with start_cli("doctor", "--config", path, "--timeout", "60s") as process:
            listener.settimeout(20)
            with listener.accept()[0] as peer:
                peer.settimeout(20)
                assert peer.recv(100)
                begun = time.monotonic()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=20)
                assert time.monotonic() - begun < 5
    assert (process.returncode, out, err.splitlines()[-1]) == (130, "", "framegate: interrupted")
    assert os.listdir(tmp_path / "tap") == []


def in_own_mounts(*words: str) -> str:
    """Why a file of the system cannot be replaced for one process; empty if it can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "needs root and unshare"
    done = subprocess.run(["unshare", "-m", "mount", "--bind", *words], capture_output=True, text=True, check=False)
    return done.stderr.strip()


@pytest.mark.slow
def test_a_silent_name_server_upstream_and_admin_socket_take_the_time_once(tmp_path: Path) -> None:
    """And one wrong key beside; what answers is looked at."""
    resolver = tmp_path / "resolv.conf"
    if fault := in_own_mounts(os.devnull, "/etc/resolv.conf"):
        pytest.skip(fault)
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        names.bind((f"127.53.{random.randrange(256)}.{random.randrange(1, 255)}", 53))
        resolver.write_text(f"nameserver {names.getsockname()[0]}\n")
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0)).getsockname()
        for _ in range(2):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full)
        admin = stack.enter_context(socket.socket(socket.AF_UNIX))
        admin.bind(f"{tmp_path}/admin.sock")
        admin.listen()
        upstream = ScriptedUpstream(echo)
        stack.callback(upstream.close)
        endpoints = {"named": "broker.example:1", "full": f"127.0.0.1:{full[1]}", "up": upstream.address}
        path = write(tmp_path, "", colour="red", upstreams=[{"name": name, "endpoints": [endpoint]} for name, endpoint in endpoints.items()])
        command = [sys.executable, "-P", "-m", "framegate.control.cli", "doctor", "--config", path, "--output", "json", "--timeout", "1s"]
        mounted = f"mount --bind {resolver} /etc/resolv.conf && exec {shlex.join(command)}"
        begun = time.monotonic()
        done = subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, text=True, timeout=30, check=False)
        taken = time.monotonic() - begun
    found = {row["subject"]: f"{row['level']}: {row['found']}" for row in rows(done.stdout)}
    assert found["colour"].startswith("fault: ")
    assert re.fullmatch(r"fault: cannot be looked up: no answer within 0.[45]\d* s", found["broker.example (upstream named)"])
    assert re.fullmatch(r"fault: takes no connection within (0.[89]\d*|1) s", found[f"full, 127.0.0.1:{full[1]}"])
    assert re.fullmatch(r"fault: what listens at \S+ did not answer within (0.[89]\d*|1) s", found["control plane"])
    assert found[f"up, {upstream.address}"].startswith("ok: connected in ")
    assert taken < 6, "it is 1 s and the start of a process: 1.3 s on an idle machine"


def test_no_key_and_no_password_is_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("server")
    os.chmod(key, 0o644)
    (tmp_path / "password").write_text("canary-5e2f-password\n")
    upstream = {"name": "up", "endpoints": ["127.0.0.1:1"], "sasl": {"mechanism": "PLAIN", "user": "me", "password_file": str(tmp_path / "password")}}
    listener = {
        "name": "in",
        "address": "127.0.0.1:0",
        "upstream": "up",
        "protocol": "kafka",
        "max_receive_size": "1MiB",
        "tls": {"certificate": certificate, "key": key},
    }
    path = write(tmp_path, "", listeners=[listener], upstreams=[upstream])
    for output in ("json", "table"):
        _, out, err = run("--config", path, "--output", output)
        assert "listeners[0].tls.key" in out
        assert "canary" not in out + err
        assert not any(line in out + err for line in Path(key).read_text().splitlines()[1:-1])


SCRIPT = """
import os, sys
from click.testing import CliRunner
from framegate.control.cli.commands import main
CliRunner().invoke(main, sys.argv[1:])  # everything is loaded: nobody may not read where this Python lies
os.setgroups([]); os.setgid(65534); os.setuid(65534)
main(sys.argv[1:])
"""


def test_as_a_user_without_rights_each_look_says_so_in_words() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with everybodys_folder() as folder:
        words = ["doctor", "--config", write(folder, "127.0.0.1:1"), "--output", "json"]
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    found = rows(done.stdout)
    user = next(row for row in found if row["subject"] == "user")
    assert (user["level"], user["figures"]) == ("ok", {"uid": 65534})
    assert not any("a fault of `framegate doctor` itself" in row["found"] for row in found)
    assert any(row["level"] == "fault" and "is not writable" in row["found"] for row in found)  # the admin socket's folder is root's


@pytest.mark.slow
def test_beside_a_framegate_that_runs_its_own_process_and_file_are_looked_at(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(echo)
    config = {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB", "limits": {"connections": 100}}],
        "upstreams": [{"name": "echo", "endpoints": [upstream.address]}],
    }
    with Framegate(tmp_path, config) as framegate:
        path = str(tmp_path / "framegate.yaml")
        done = framegate.cli("doctor", "--config", path, "--output", "json")
        found = rows(done.stdout)
        assert [row for row in found if row["level"] == "fault"] == []
        assert not any("is in use now" in row["found"] for row in found)
        limits = next(row for row in found if "RLIMIT_NOFILE" in row["subject"])
        assert f"framegate, process {framegate.process.pid}" in limits["subject"]
        assert limits["figures"]["needed"] == 264
        same = next(row for row in found if row["subject"] == "configuration in force")
        assert same["level"] == "ok"
        framegate.cli("limits", "set", "--listener", "plain", "--max-receive-size", "2MiB")
        changed = next(row for row in rows(framegate.cli("doctor", "--config", path, "--output", "json").stdout) if row["subject"] == same["subject"])
        assert changed["level"] == "warning"
        assert "listeners[plain].max_receive_size is 2MiB, in the file 1MiB; it was changed 1 times over the API" in changed["found"]
    upstream.close()
