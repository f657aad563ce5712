"""The node, which all tests share, and for each test a namespace in which pod security is enforced."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.images import IMAGES
from tests.cluster.machine import FOLDER
from tests.cluster.node import ApiServer, Node
from tests.cluster.room import Room

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[ApiServer]:
    """A node with all images, or where there are none an API server alone; ``make cluster-test`` has made the namespaces that they need."""
    folder, images = os.environ.get(FOLDER), os.environ.get(IMAGES)
    if folder is None:
        pytest.skip("needs namespaces of its own: make cluster-test")
    server = Node(Path(folder) / "node") if images else ApiServer(Path(folder) / "node")
    started = time.monotonic()
    try:
        server.start()
        print(f"\ncluster: Kubernetes {server.version()} was ready after {time.monotonic() - started:.1f} s")
        if isinstance(server, Node) and images:
            loading = time.monotonic()
            for archive in sorted(Path(images).glob("*.tar")):
                server.load(archive)
            print(f"cluster: the images were there {time.monotonic() - loading:.1f} s later")
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def node(cluster: ApiServer) -> Node:
    if not isinstance(cluster, Node):
        pytest.skip("needs a node")
    return cluster


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
