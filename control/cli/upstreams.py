"""``framegate upstreams``."""

import click

from framegate.control.cli.client import calling, pages
from framegate.control.cli.options import admin_options, example
from framegate.control.cli.output import print_messages, size_text

__all__ = ["upstreams"]


@click.group(epilog=example("framegate upstreams list"))
def upstreams() -> None:
    """Upstreams: the servers to which framegate forwards frames."""


@upstreams.command("list", epilog=example("framegate upstreams list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the upstreams, their endpoints, and endpoints that are down."""
    from framegate.control.v1 import upstream_service_pb2 as pb2
    from framegate.control.v1 import upstream_service_pb2_grpc as pb2_grpc

    def cells(item: pb2.Upstream) -> tuple[object, ...]:
        return (
            item.name, ", ".join(item.endpoints), ", ".join(item.addresses) or "-", "yes" if item.tls_enabled else "no",
            size_text(item.max_receive_size_bytes), ", ".join(f"{down.address} ({down.reason})" for down in item.down_endpoints) or "-",
            item.resolution_error or "-",
        )  # fmt: skip

    with calling(address) as channel:
        list_page = pb2_grpc.UpstreamServiceStub(channel).ListUpstreams
        found = [item for page in pages(list_page, pb2.ListUpstreamsRequest()) for item in page.upstreams]
    print_messages(found, output, ("NAME", "ENDPOINTS", "ADDRESSES", "TLS", "MAX RECEIVE SIZE", "DOWN", "ERROR"), cells)
