"""The steps of deploy/docs/kubernetes.md, as they are printed: from nothing to frames in tables."""

import ast
import json
import re
from pathlib import Path

from tests.cluster.node import Node
from tests.cluster.room import Room

ROOT = Path(__file__).resolve().parents[2]


def steps() -> str:
    """The block of the example."""
    page = (ROOT / "deploy" / "docs" / "kubernetes.md").read_text()
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if block.startswith("kubectl apply -f deploy/kustomize/example/namespace.yaml"))


def test_a_newcomer_gets_from_nothing_to_frames_in_tables(node: Node, tmp_path: Path) -> None:
    here = Room(node, "framegate-example", tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    done = here.command("bash", "-c", "set -eux\n" + steps(), timeout_s=420.0)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{here.story()}"
    assert "Warning" not in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (client,) = [row for row in rows if "answered" in row]
    assert client["sent"] == client["answered"] > 0
    assert client["wrong"] == 0
    (counts,) = [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("[{'values'")]
    assert {row["values"] for row in counts} == {"request", "response"}
    print(f"\ncluster: the page followed: {client['sent']} frames sent and answered, in the tables so far: {counts}")
