from pathlib import Path

import pytest

from control.telemetry.attempt import tls_context
from tests.fakes.carrying import target
from tests.fakes.certificates import Authority


def test_the_authority_that_is_named_is_the_only_one_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = tls_context(target("https://127.0.0.1:1", OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority.path)))
    assert [dict(part[0] for part in found["subject"])["commonName"] for found in context.get_ca_certs()] == ["test authority"]


def test_a_file_that_is_no_certificate_is_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    found = target("https://127.0.0.1:1", OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority.path))
    authority.path.write_text("none")
    with pytest.raises(OSError, match="certificate"):
        tls_context(found)
