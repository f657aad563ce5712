"""Calls of the API server: with the pod's token, and with its reasons when it refuses."""

from pathlib import Path

import pytest

from framegate.control.kubernetes.cluster import Cluster, ClusterError
from tests.fakes.api_server import FakeApiServer

MAP = "/api/v1/namespaces/ns/configmaps/c"


def test_a_text_of_a_config_map_is_read_and_why_not_is_said(api_server: FakeApiServer) -> None:
    cluster = Cluster(api_server.account)
    assert cluster.namespace == "system"
    api_server.objects[MAP] = {"data": {"a": "text"}}
    assert cluster.config_map("ns", "c", "a") == "text"
    with pytest.raises(ClusterError, match="ConfigMap c has no b"):
        cluster.config_map("ns", "c", "b")
    with pytest.raises(ClusterError, match=r"GET .*/d: .*/d not found") as caught:
        cluster.config_map("ns", "d", "a")
    assert caught.value.status == 404
    api_server.objects["/api/v1/namespaces/ns/secrets/s"] = {"data": {"a": "secret"}}
    with pytest.raises(ClusterError, match=r"configmaps/\.\.%2Fsecrets%2Fs not found"):
        cluster.config_map("ns", "../secrets/s", "a")
    (api_server.account / "token").write_text("renewed")
    with pytest.raises(ClusterError, match="Unauthorized"):
        cluster.config_map("ns", "c", "a")


def test_an_event_is_about_an_object_and_as_long_as_events_may_be(api_server: FakeApiServer) -> None:
    Cluster(api_server.account).event("ns", {"kind": "ReplicaSet", "name": "r"}, "NotInjected", "x" * 2000)
    ((path, event),) = api_server.posted
    assert path == "/api/v1/namespaces/ns/events"
    assert event["involvedObject"] == {"kind": "ReplicaSet", "name": "r", "namespace": "ns"}
    assert (event["reason"], len(event["message"]), event["type"]) == ("NotInjected", 1024, "Warning")


def test_elsewhere_than_in_a_pod_it_says_what_is_missing(api_server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"needs a pod with a service account, .*FileNotFoundError"):
        Cluster(tmp_path)
    cluster = Cluster(api_server.account)
    api_server.close()
    with pytest.raises(ClusterError, match=r"GET .*ConnectionRefusedError"):
        cluster.call("GET", MAP)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ClusterError, match="KUBERNETES_SERVICE_HOST"):
        Cluster(api_server.account)
