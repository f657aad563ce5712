"""The node, which all tests share, and for each test a namespace in which pod security is enforced."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machine import FOLDER
from tests.cluster.node import Node
from tests.cluster.room import Room

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A node with all images; ``make cluster-test`` has made the namespaces that it needs."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        pytest.skip("needs namespaces of its own: make cluster-test")
    node = Node(Path(folder) / "node")
    started = time.monotonic()
    try:
        node.start()
        ready = time.monotonic()
        for archive in sorted(Path(os.environ["FRAMEGATE_CLUSTER_IMAGES"]).glob("*.tar")):
            node.load(archive)
        print(f"\ncluster: the node was ready after {ready - started:.1f} s, the images were there {time.monotonic() - ready:.1f} s later")
        yield node
    finally:
        node.stop()


@pytest.fixture
def room(node: Node, request: pytest.FixtureRequest) -> Iterator[Room]:
    """A namespace whose pods must be ``restricted``; it is removed at the end. After a failed test its events and logs are printed."""
    name = f"t{next(_numbers)}"
    room = Room(node, name, node.folder / f"room-{name}")
    room.create()
    before = request.session.testsfailed
    try:
        yield room
        if request.session.testsfailed > before:
            print(room.story())
    finally:
        room.remove()
