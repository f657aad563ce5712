"""ConfigurationService: what is shown, what is applied, and what the audit row of a change has."""

import grpc
import pytest

from framegate.control.configuration.reading import parse_document
from framegate.control.configuration.schema import build
from framegate.control.configuration.writing import as_yaml
from framegate.control.rotation.source import Refusal
from framegate.control.v1 import configuration_service_pb2 as pb2
from framegate.control.v1 import proxy_service_pb2
from framegate.control.v1.configuration_service_pb2_grpc import ConfigurationServiceStub
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub
from framegate.proxy.config.model import ProxyConfig
from tests.control.service.served import refused, served
from tests.fakes.serving import Serving

SIZE = "listeners[kafka].max_receive_size"


def stub(at: Serving) -> "ConfigurationServiceStub":
    return ConfigurationServiceStub(at.channel)


def text(at: Serving, size: str = "4KiB", **changes: str) -> str:
    """The configuration of the plane with another limit."""
    written = as_yaml(at.plane.config, str(at.plane.file.parent)).replace("  - name: kafka\n", f"  - name: kafka\n    max_receive_size: {size}\n")
    for old, new in changes.items():
        written = written.replace(old, new)
    return written


async def shown(at: Serving, view: pb2.GetConfigurationRequest.View.ValueType, *, defaults: bool = False) -> tuple[pb2.Configuration, ProxyConfig]:
    answer = await stub(at).GetConfiguration(pb2.GetConfigurationRequest(view=view, include_defaults=defaults))
    document = parse_document(answer.configuration.text, at.plane.file.parent)
    config = build(document)
    assert document.faults == []
    return answer.configuration, config


@served()
async def test_the_file_and_what_is_in_force_are_shown_as_yaml(at: Serving) -> None:
    loaded = at.plane.config
    at.plane.limit(4096)
    for defaults in (False, True):
        found, config = await shown(at, pb2.GetConfigurationRequest.VIEW_FILE, defaults=defaults)
        assert config == loaded
        assert ("close_revoked" in found.text) is defaults
        _, config = await shown(at, pb2.GetConfigurationRequest.VIEW_IN_FORCE, defaults=defaults)
        assert config == at.plane.config
    assert [(item.path, item.before, item.after, item.effect) for item in found.differences] == [(SIZE, "100MiB", "4KiB", pb2.Difference.EFFECT_NOW)]
    assert (found.difference_count, found.file, found.file_state) == (1, str(at.plane.file), pb2.Configuration.FILE_STATE_LOADED)
    wrong = stub(at).GetConfiguration(pb2.GetConfigurationRequest(view=9))  # type: ignore[arg-type]
    assert await refused(wrong) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ["view"])


@served()
async def test_a_text_is_applied_and_its_audit_row_has_the_values_that_changed(at: Serving) -> None:
    before = (await stub(at).GetConfiguration(pb2.GetConfigurationRequest())).configuration.etag
    request = pb2.ApplyConfigurationRequest(text=text(at), etag=before, reason="why")
    dry = await stub(at).ApplyConfiguration(pb2.ApplyConfigurationRequest(text=text(at), validate_only=True))
    assert ([item.path for item in dry.differences], dry.difference_count, dry.etag) == ([SIZE], 1, before)
    answer = await stub(at).ApplyConfiguration(request)
    assert (list(answer.differences), at.plane.limits["kafka"], answer.etag != before) == (list(dry.differences), 4096, True)
    check, made = at.plane.audits
    assert (check["before"], check["after"]) == (None, None)
    assert (made["before"], made["after"]) == ({SIZE: "100MiB"}, {SIZE: "4KiB"})
    assert made["request"] == {"etag": before, "reason": "why"}, "not the text, whose comments may say anything"
    assert await refused(stub(at).ApplyConfiguration(request)) == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH", [])


@served()
async def test_faults_are_an_error_or_with_a_check_alone_the_answer(at: Serving) -> None:
    faulty = pb2.ApplyConfigurationRequest(text=text(at, "-1").replace("broker:9092", "broker"))
    code, reason, fields = await refused(stub(at).ApplyConfiguration(faulty))
    assert (code, reason, fields) == (grpc.StatusCode.INVALID_ARGUMENT, "CONFIGURATION_INVALID", ["text", "text"])
    faulty.validate_only = True
    answer = await stub(at).ApplyConfiguration(faulty)
    assert [(item.line, item.key, item.value) for item in answer.faults] == [
        (4, "listeners[0].max_receive_size", "-1"),
        (16, "upstreams[0].endpoints[0]", "broker"),
    ]
    assert (list(answer.differences), at.plane.limits["kafka"]) == ([], 100 * 1024**2)
    restart = stub(at).ApplyConfiguration(pb2.ApplyConfigurationRequest(text=text(at).replace("edge-1", "edge-2")))
    assert (await refused(restart))[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "NEEDS_RESTART")
    long = stub(at).ApplyConfiguration(pb2.ApplyConfigurationRequest(text=text(at), reason="x" * 257))
    assert (await refused(long))[2] == ["reason"]


@served()
async def test_without_a_text_it_is_the_file(at: Serving) -> None:
    assert (await refused(stub(at).ApplyConfiguration(pb2.ApplyConfigurationRequest())))[2] == ["file"]
    at.plane.file.write_text(text(at))
    await stub(at).ApplyConfiguration(pb2.ApplyConfigurationRequest())
    found, config = await shown(at, pb2.GetConfigurationRequest.VIEW_FILE)
    assert (config, found.difference_count, at.plane.limits["kafka"]) == (at.plane.config, 0, 4096)


@served()
async def test_the_proxy_says_whether_it_runs_what_is_in_the_file(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async def status() -> pb2.Configuration:
        answer = await ProxyServiceStub(at.channel).GetProxy(proxy_service_pb2.GetProxyRequest())
        return answer.proxy.configuration

    assert ((await status()).file_state, (await status()).difference_count) == (pb2.Configuration.FILE_STATE_LOADED, 0)
    at.plane.limit(4096)
    rotation = at.plane.parts.configuration_file._rotation
    monkeypatch.setattr(rotation, "changed", lambda owner, kind: True)
    found = await status()
    assert ([item.path for item in found.differences], found.file_state, found.text) == ([SIZE], pb2.Configuration.FILE_STATE_CHANGED, "")
    monkeypatch.setattr(rotation, "refusal", lambda owner, kind: Refusal("/f", "line 1: no"))
    found = await status()
    assert (found.file_state, found.file_error) == (pb2.Configuration.FILE_STATE_REFUSED, "/f line 1: no")
