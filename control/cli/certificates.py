"""``framegate certificates``."""

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.options import admin_options, example

if TYPE_CHECKING:
    from framegate.control.v1.certificate_service_pb2 import Certificate, Reload

__all__ = ["certificates"]

_COLUMNS: Final = (
    "OWNER", "USE", "FILE", "SUBJECT", "NAMES", "ISSUER", "FINGERPRINT", "FROM", "UNTIL", "ENDS IN", "STORE", "LOADED", "ERROR",
)  # fmt: skip
_SHORT: Final = 16


@click.group(epilog=example("framegate certificates list", "framegate certificates reload"))
def certificates() -> None:
    """TLS certificates and certificate authorities: list them, and reload changed files."""


@certificates.command("list", epilog=example("framegate certificates list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the certificates in use. ERROR says why the present contents of a file are not in use."""
    from framegate.control.cli.client import CALL_TIMEOUT_S, PAGE_SIZE, calling, pages
    from framegate.control.cli.output import as_dict, print_json, print_note, print_table
    from framegate.control.v1 import certificate_service_pb2 as pb2
    from framegate.control.v1.certificate_service_pb2_grpc import CertificateServiceStub

    def ask(token: str) -> pb2.ListCertificatesResponse:
        return stub.ListCertificates(pb2.ListCertificatesRequest(page_size=PAGE_SIZE, page_token=token), timeout=CALL_TIMEOUT_S)

    with calling(address) as channel:
        stub = CertificateServiceStub(channel)
        found = [item for page in pages(ask) for item in page.certificates]
    if output == "json":
        print_json([as_dict(item) for item in found])
        return
    print_table(_COLUMNS, map(_cells, found))
    if not found:
        print_note("no listener or upstream uses TLS")


def _cells(item: "Certificate") -> tuple[Any, ...]:
    import time

    from framegate.control.cli.output import age_text, as_dict, time_text

    row = as_dict(item)
    left = item.end_time.ToNanoseconds() / 1e9 - time.time()
    return (
        item.owner, item.use, item.file, item.subject or "-", ", ".join(item.names) or "-", item.issuer, item.fingerprint[:_SHORT],
        time_text(row.get("begin_time")), time_text(row.get("end_time")), age_text(left) if left > 0 else "expired",
        item.store_number, time_text(row.get("load_time")), item.error or "-",
    )  # fmt: skip


@certificates.command("reload", epilog=example("framegate certificates reload"))
@click.option("--reason", default="", help="The reason, for the audit log.")
@admin_options
def reload(reason: str, address: str, output: str) -> None:
    """Read all watched files again, and use the changed ones: certificates, keys, certificate authorities, users, token keys.

    A faulty file is refused and its previous contents stay in use; the exit code is then 1.
    """
    from framegate.control.cli.client import calling, metadata
    from framegate.control.cli.output import as_dict, print_json, print_note, print_table
    from framegate.control.v1 import certificate_service_pb2 as pb2
    from framegate.control.v1.certificate_service_pb2_grpc import CertificateServiceStub

    with calling(address, change=True) as channel:
        answer = CertificateServiceStub(channel).ReloadCertificates(pb2.ReloadCertificatesRequest(reason=reason), metadata=metadata())
    if output == "json":
        print_json([as_dict(item) for item in answer.reloads])
    else:
        print_table(("OWNER", "KIND", "RESULT", "FILE", "REASON"), map(_reload_cells, answer.reloads))
        if not answer.reloads:
            print_note("no files are watched")
    if any(item.result == pb2.Reload.RESULT_REFUSED for item in answer.reloads):
        sys.exit(1)


def _reload_cells(item: "Reload") -> tuple[Any, ...]:
    from framegate.control.cli.output import word

    return item.owner, item.kind, word(type(item).Result.Name(item.result), "RESULT_"), item.file or "-", item.reason or "-"
