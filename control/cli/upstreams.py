"""``framegate upstreams``."""

import click

from framegate.control.cli.options import admin_options, example

__all__ = ["upstreams"]


@click.group(epilog=example("framegate upstreams list"))
def upstreams() -> None:
    """Upstreams: the servers to which framegate forwards frames."""


@upstreams.command("list", epilog=example("framegate upstreams list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the upstreams, their endpoints, and endpoints that are down."""
    from framegate.control.cli.client import CALL_TIMEOUT_S, PAGE_SIZE, calling, pages
    from framegate.control.cli.output import as_dict, print_json, print_table, size_text
    from framegate.control.v1 import upstream_service_pb2 as pb2
    from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub

    def ask(token: str) -> pb2.ListUpstreamsResponse:
        return stub.ListUpstreams(pb2.ListUpstreamsRequest(page_size=PAGE_SIZE, page_token=token), timeout=CALL_TIMEOUT_S)

    with calling(address) as channel:
        stub = UpstreamServiceStub(channel)
        found = [item for page in pages(ask) for item in page.upstreams]
    if output == "json":
        print_json([as_dict(item) for item in found])
        return
    rows = [
        (
            item.name, ", ".join(item.endpoints), ", ".join(item.addresses) or "-", "yes" if item.tls_enabled else "no",
            size_text(item.max_receive_size_bytes), ", ".join(f"{down.address} ({down.reason})" for down in item.down_endpoints) or "-",
            item.resolution_error or "-",
        )
        for item in found
    ]  # fmt: skip
    print_table(("NAME", "ENDPOINTS", "ADDRESSES", "TLS", "MAX RECEIVE SIZE", "DOWN", "ERROR"), rows)
