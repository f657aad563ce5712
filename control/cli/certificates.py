"""``framegate certificates``."""

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import age_text, as_dict, field_word, print_messages, time_text

if TYPE_CHECKING:
    from framegate.control.v1.certificate_service_pb2 import Certificate, Reload

_COLUMNS: Final = (
    "OWNER", "USE", "FILE", "SUBJECT", "NAMES", "ISSUER", "FINGERPRINT", "FROM", "UNTIL", "ENDS IN", "STORE", "LOADED", "ERROR",
)  # fmt: skip
_SHORT: Final = 16
_SERVICE: Final = Service("certificate")


@click.group(epilog=example("framegate certificates list", "framegate certificates reload"))
def certificates() -> None:
    """TLS certificates and certificate authorities: list them, and reload changed files."""


@certificates.command("list", epilog=example("framegate certificates list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the certificates in use. ERROR says why the present contents of a file are not in use."""
    with calling(address) as channel:
        found = _SERVICE.listed(channel, "ListCertificates")
    print_messages(found, output, _COLUMNS, _cells, "no listener or upstream uses TLS")


def _cells(item: "Certificate") -> tuple[Any, ...]:
    row = as_dict(item)
    left = item.end_time.ToNanoseconds() / 1e9 - time.time()
    return (
        item.owner, field_word(item, "use"), item.file, item.subject or "-", ", ".join(item.names) or "-", item.issuer, item.fingerprint[:_SHORT],
        time_text(row.get("begin_time")), time_text(row.get("end_time")), age_text(left) if left > 0 else "expired",
        item.store_number, time_text(row.get("load_time")), item.error or "-",
    )  # fmt: skip


@certificates.command("reload", epilog=example("framegate certificates reload"))
@change_options("reason")
@admin_options
def reload(change: Change, address: str, output: str) -> None:
    """Read all watched files again, and use the changed ones: certificates, keys, certificate authorities, users, token keys.

    A faulty file is refused and its previous contents stay in use; the exit code is then 1.
    """
    with calling(address, change=True) as channel:
        reloads = _SERVICE.change(channel, "ReloadCertificates", change, None).reloads
    print_messages(reloads, output, ("OWNER", "KIND", "RESULT", "FILE", "REASON"), _reload_cells, "no files are watched")
    if any(item.result == item.RESULT_REFUSED for item in reloads):
        sys.exit(1)


def _reload_cells(item: "Reload") -> tuple[Any, ...]:
    return item.owner, field_word(item, "kind"), field_word(item, "result"), item.file or "-", item.reason or "-"
