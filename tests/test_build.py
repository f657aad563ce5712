"""The build under test is the one that was asked for, in this process and in a running processor."""

import importlib
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from framegate.proxy import cells
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, to_wire
from framegate.proxy.server.link import LinkReader, encode
from framegate.proxy.server.messages import StartMessage
from framegate.proxy.server.protocol import WIRE_VERSION

ROOT = Path(__file__).resolve().parent.parent


def hot_modules() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compiled"]
    for pattern in patterns:
        assert list(ROOT.glob(pattern)), f"pyproject.toml: no module for {pattern}"
    files = {path for pattern in patterns for path in ROOT.glob(pattern) if path.name not in ("__init__.py", "__main__.py")}
    return sorted("framegate." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)


def ready_message() -> dict[str, object]:
    """Start a processor as control does, and return what it says when it is ready."""
    upstream = UpstreamConfig(name="up", endpoints=("127.0.0.1:9",))
    config = ProxyConfig(node="build", listeners=(ListenerConfig(name="in", address="127.0.0.1:0", upstream="up"),), upstreams=(upstream,))
    memory = cells.create(cells.CellLayout.of(config))
    ours, theirs = socket.socketpair()
    handover, their_handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = (their_handover.fileno(), theirs.fileno(), memory)
    names = ("--handover-fd", "--command-fd", "--cells-fd")
    command = [sys.executable, "-P", "-m", "framegate.proxy.server", "--slot", "0"]
    for name, descriptor in zip(names, descriptors, strict=True):
        command += [name, str(descriptor)]
    start = StartMessage(
        type="start",
        wire=WIRE_VERSION,
        config=to_wire(config),
        slot=0,
        generation=1,
        boot_id="build",
        share=2**28,
        endpoints={"up": [["127.0.0.1", int(socket.AF_INET), "127.0.0.1", 9]]},
    )
    with ours, theirs, handover, their_handover:
        processor = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
        try:
            os.close(memory)
            theirs.close()
            their_handover.close()
            ours.settimeout(10)
            ours.sendall(encode(start))
            reader = LinkReader()
            while data := ours.recv(65536):
                for message in reader.feed(data):
                    if message["type"] in ("ready", "failed"):
                        return message
            pytest.fail("the processor ended before it was ready")
        finally:
            processor.kill()
            processor.wait()


def test_every_hot_module_is_the_build_that_was_asked_for_here_and_in_a_processor(expected_build: str) -> None:
    ending = ".so" if expected_build == "compiled" else ".py"
    here = {name: importlib.import_module(name).__file__ or "" for name in hot_modules()}
    assert {name: file for name, file in here.items() if not file.endswith(ending)} == {}
    message = ready_message()
    assert message["type"] == "ready", message
    modules = message["modules"]
    assert isinstance(modules, dict)
    there = {name: str(file) for name, file in modules.items() if name in here}
    assert {name: file for name, file in there.items() if file != here[name]} == {}
    assert {"framegate.proxy.server.loop", "framegate.proxy.network.selector"} <= there.keys()


def test_a_processor_loads_nothing_but_the_standard_library_and_our_own_modules() -> None:
    line = "import sys, framegate.proxy.server.loop; print('\\n'.join(sorted({n.partition('.')[0] for n in sys.modules})))"
    output = subprocess.run([sys.executable, "-P", "-c", line], check=True, stdout=subprocess.PIPE, text=True).stdout
    extra = {name for name in output.split() if name not in sys.stdlib_module_names and not name.endswith("__mypyc")}
    site = {name for name in extra if name.startswith(("_virtualenv", "__editable", "_distutils", "__main__", "sitecustomize", "usercustomize"))}
    assert extra - site <= {"framegate", "librt", "mypy_extensions"}
    assert {"hashlib", "ssl", "asyncio", "logging"}.isdisjoint(output.split()), "each costs memory of every processor, and few need it"
