"""Admission reviews: a pod gets what inject adds, once; why not is said to its creator and in an event."""

import base64
import copy
import json
from typing import Any

from framegate.control.kubernetes.admission import Admission, patch_of
from framegate.control.kubernetes.cluster import Cluster
from framegate.control.kubernetes.inject import Injector, remove
from framegate.control.kubernetes.objects import Wanted
from framegate.control.kubernetes.pod_requirements import fitted_requirements
from framegate.control.kubernetes.sidecar import Options, grace_least_s
from tests.fakes.api_server import FakeApiServer

CONFIGURATION = """\
node: edge
health: {address: "0.0.0.0:9901"}
memory_pool: {size: 64MiB}
listeners: [{name: a, address: "0.0.0.0:7000", upstream: u, max_receive_size: 1MiB, limits: {connections: 100}}]
upstreams: [{name: u, endpoints: ["127.0.0.1:9190"]}]
drain: {timeout: 25s}
"""
KIND = {"group": "", "version": "v1", "kind": "Pod"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-7", "uid": "u-1", "controller": True}
OTHER = {"apiVersion": "example.org/v1", "kind": "Widget", "name": "w", "uid": "u-2"}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "app-7-", "creationTimestamp": None, "labels": {"framegate.io/inject": "true"}, "ownerReferences": [OTHER, OWNER]},
    "spec": {
        "volumes": [{"name": "account", "projected": {"sources": [], "defaultMode": 420}}],
        "initContainers": [{"name": "first"}],
        "containers": [{"name": "app", "args": ["ä \U0001f600 \u2028 \x7f \x85 /~"], "ports": [{"containerPort": 80}]}],
        "terminationGracePeriodSeconds": 30,
    },
    "status": {},
}


def pod(**changes: Any) -> dict[str, Any]:
    """The pod with other annotations, labels, or parts of its specification."""
    made = copy.deepcopy(POD)
    for name in ("annotations", "labels"):
        if name in changes:
            made["metadata"][name] = changes.pop(name)
    made["spec"] |= changes
    return made


def ask(api_server: FakeApiServer, item: dict[str, Any], default: str | None = CONFIGURATION, *, admit: bool = False, **more: Any) -> dict[str, Any]:
    request = {"uid": "7", "operation": "CREATE", "kind": KIND, "namespace": "ns", "object": item, **more}
    return Admission(Cluster(api_server.account), Options(), default, admit=admit).answer(request)


def patched(item: Any, answer: dict[str, Any]) -> Any:
    """The pod after the answer's patch."""
    found = copy.deepcopy(item)
    for operation in json.loads(base64.b64decode(answer["patch"])):
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = found
        for key in above:
            place = place[int(key)] if isinstance(place, list) else place[key]
        if isinstance(place, list) and operation["op"] == "replace":
            place[int(last)] = operation["value"]
        elif isinstance(place, list):
            place.insert(len(place) if last == "-" else int(last), operation["value"])
        else:
            assert (operation["op"] == "replace") is (last in place)
            place[last] = operation["value"]
    return found


def test_a_pod_gets_what_inject_adds_and_carries_its_configuration(api_server: FakeApiServer) -> None:
    answer = ask(api_server, POD)
    assert (answer["uid"], answer["allowed"], answer["patchType"]) == ("7", True, "JSONPatch")
    after = patched(POD, answer)
    needs, _ = fitted_requirements(CONFIGURATION, 1000, 512 << 20)
    assert after == json.loads(Injector(Options(config_map=None, admitted=True), needs, Wanted()).inject(json.dumps(POD)))
    assert [item["name"] for item in after["spec"]["initContainers"]] == ["framegate", "first"]
    assert after["metadata"]["annotations"]["framegate.io/configuration"] == CONFIGURATION
    grace = after["spec"]["terminationGracePeriodSeconds"]
    assert grace >= grace_least_s(needs) > 30
    assert answer["warnings"] == [f"Pod app-7-: terminationGracePeriodSeconds, 30 as the API server writes where nobody has, becomes {grace}"]
    assert json.loads(remove(json.dumps(after))[0]) == POD
    assert api_server.posted == []


def test_a_pod_is_left_alone_when_it_has_framegate_or_does_not_want_it(api_server: FakeApiServer) -> None:
    once = patched(POD, ask(api_server, POD))
    by_others = pod(initContainers=[{"name": "framegate"}])
    off = pod(labels={"framegate.io/inject": "false"})
    static = pod(annotations={"kubernetes.io/config.mirror": "7"})
    for item in (once, by_others, off, static):
        assert ask(api_server, item) == {"uid": "7", "allowed": True}
    for more in ({"operation": "UPDATE"}, {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}):
        assert ask(api_server, POD, **more) == {"uid": "7", "allowed": True}
    assert "patch" in ask(api_server, pod(labels=None)), "the selectors of the webhook choose"


def test_annotations_name_configuration_and_certificate(api_server: FakeApiServer) -> None:
    text = CONFIGURATION.replace("limits:", "tls: {certificate: /tls/tls.crt, key: /tls/tls.key}, limits:")
    api_server.objects["/api/v1/namespaces/ns/configmaps/mine"] = {"data": {"framegate.yaml": text}}
    item = pod(annotations={"framegate.io/config": "mine", "framegate.io/tls-secret": "s", "framegate.io/env-secret": "e"})
    after = patched(item, ask(api_server, item, None))
    assert after["metadata"]["annotations"]["framegate.io/configuration"] == text
    assert [each["secret"]["secretName"] for each in after["spec"]["volumes"] if "secret" in each] == ["s"]
    assert after["spec"]["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "e"}}]
    names = ("config", "tls-secret", "tls-volume", "env-secret")
    empty = pod(annotations={f"framegate.io/{name}": "" for name in names})
    request = {"uid": "7", "operation": "CREATE", "kind": KIND, "namespace": "ns", "object": empty}
    answer = Admission(Cluster(api_server.account), Options(env_secret="e"), text, admit=False).answer(request)
    assert "envFrom" not in patched(empty, answer)["spec"]["initContainers"][0]
    assert [each["secret"]["secretName"] for each in patched(empty, answer)["spec"]["volumes"] if "secret" in each] == ["framegate-tls"]
    item = pod(annotations={"framegate.io/config": "mine", "framegate.io/tls-volume": "spiffe"}, volumes=[{"name": "spiffe", "csi": {"driver": "d"}}])
    after = patched(item, ask(api_server, item, None))
    sidecar = after["spec"]["initContainers"][0]
    assert ("spiffe", "/tls") in [(mount["name"], mount["mountPath"]) for mount in sidecar["volumeMounts"]]
    assert not any("secret" in volume for volume in after["spec"]["volumes"])


def test_a_pod_that_framegate_cannot_be_added_to_is_refused_or_admitted_with_reason_and_event(api_server: FakeApiServer) -> None:
    named = {"framegate.io/config": "c"}
    far = CONFIGURATION.replace("0.0.0.0:9901", "127.0.0.1:9901")
    maps = {"c": CONFIGURATION.replace("upstream: u,", "upstream: v,"), "large": CONFIGURATION + "#" * 200_001, "far": far}
    cases: list[tuple[dict[str, Any], str | None, str]] = [
        (pod(containers=[{"name": "app", "ports": [{"containerPort": 7000}]}]), CONFIGURATION, "has port 7000, on which framegate listens"),
        (pod(containers=None), CONFIGURATION, "has no containers"),
        (pod(terminationGracePeriodSeconds=29), CONFIGURATION, "has terminationGracePeriodSeconds 29, but framegate needs"),
        (POD, None, "the pod's annotation framegate.io/config must name a ConfigMap"),
        (pod(annotations=named), None, "c: line 4: listeners[0].upstream"),
        (pod(annotations={"framegate.io/config": "none"}), CONFIGURATION, "configmaps/none not found"),
        (pod(annotations={"framegate.io/config": "large"}), None, "more than 200000 bytes"),
        (pod(annotations={"framegate.io/config": "far"}), None, "which the kubelet cannot reach"),
        (POD, CONFIGURATION.replace("limits:", "tls: {certificate: /a/tls.crt, key: /b/tls.key}, limits:"), "add --secret NAME=/b"),
    ]
    for name, text in maps.items():
        api_server.objects[f"/api/v1/namespaces/ns/configmaps/{name}"] = {"data": {"framegate.yaml": text}}
    for item, default, words in cases:
        api_server.posted.clear()
        refused = ask(api_server, item, default)
        assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
        assert words in refused["status"]["message"]
        admitted = ask(api_server, item, default, admit=True)
        assert (admitted["allowed"], "patch" in admitted) == (True, False)
        assert any(words[:40] in warning for warning in admitted["warnings"])
        assert all(len(warning) <= 250 for warning in admitted["warnings"])
        assert [event["reason"] for _, event in api_server.posted] == ["NotInjected"] * 2
        about = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-7", "uid": "u-1", "namespace": "ns"}
        assert all(event["involvedObject"] == about and words in event["message"] for _, event in api_server.posted)
    api_server.posted.clear()
    assert not ask(api_server, POD, None, dryRun=True)["allowed"]
    assert api_server.posted == [], "a dry run leaves nothing"


def test_a_patch_adds_and_replaces() -> None:
    before = {"a/b~": 1, "same": [1], "items": [{"a": 1}, {"b": 2}], "front": [1], "back": [1], "new": [1, 2], "gone": None}
    after = {
        "a/b~": 2,
        "same": [1],
        "items": [{"a": 1}, {"b": 2, "c": 3}],
        "front": [3, 2, 1],
        "back": [1, 2, 3],
        "new": [3, 4],
        "gone": {},
        "more": [1],
    }
    found = patch_of(before, after)
    assert patched(before, {"patch": base64.b64encode(json.dumps(found).encode())}) == after
    assert found[:2] == [{"op": "replace", "path": "/a~1b~0", "value": 2}, {"op": "add", "path": "/items/1/c", "value": 3}]
    assert patch_of(after, after) == []
