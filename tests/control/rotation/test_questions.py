"""The validator process answers, and loads what it needs before it is asked, and no more."""

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

from framegate.control.configuration.child import loaded_from_row
from framegate.control.rotation.questions import answer, serve
from framegate.proxy.config.model import to_wire
from framegate.proxy.config.tls import ListenerTls
from tests.control.rotation.test_validator import files
from tests.fakes.certificates import Authority
from tests.fakes.plane import fake_config

CONFIG = """
node: edge
listeners: [{name: a, address: "127.0.0.1:0", upstream: u}]
upstreams: [{name: u, endpoints: ["127.0.0.1:9"]}]
"""
LOADED = """
import sys
from framegate.control.rotation import questions
assert "config" in questions.answer({"load": {"path": sys.argv[1], "text": sys.argv[2], "zone": "", "named": None}})
print(sum(name.startswith("cryptography") for name in sys.modules))
"""


def test_it_answers_one_question_after_another_and_keys_are_in_nothing_that_it_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = fake_config("unix:unused", None)
    row = to_wire(config)
    row["listeners"][0]["tls"] = dataclasses.asdict(ListenerTls(certificate="c", key="k"))
    old, new = files(authority), files(authority)
    text = {name: {path: data.decode() for path, data in each.items() if path != "a"} for name, each in (("old", old), ("new", new))}
    bad = {"old": text["old"], "new": {**text["new"], "k": text["old"]["k"]}}
    owner = f"listener/{config.listeners[0].name}"
    asked = [json.dumps({"config": row, "stores": {owner: store}}).encode() for store in (text, bad, text)]
    out = io.BytesIO()
    (tmp_path / "asked").write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in asked) + b"\0\0")
    with open(tmp_path / "asked", "rb") as questions:
        serve(questions, out)
    out.seek(0)
    for refusals in ({}, {owner: ["k", "is not the key of the certificate"]}, {}):
        found = json.loads(out.read(int.from_bytes(out.read(4), "big")))
        assert found["refusals"] == refusals
        assert found["certificates"][owner]["c"][0]["subject"] == "CN=server,O=Test"
    assert out.read() == b""
    assert b"PRIVATE" not in out.getvalue()


def test_a_configuration_without_certificates_is_read_without_cryptography(tmp_path: Path) -> None:
    path = str(tmp_path / "framegate.yaml")
    assert loaded_from_row(answer({"load": {"path": path, "text": CONFIG, "zone": "", "named": None}})).config.node == "edge"
    found = subprocess.run([sys.executable, "-P", "-c", LOADED, path, CONFIG], capture_output=True, text=True, check=True)
    assert found.stdout == "0\n"
