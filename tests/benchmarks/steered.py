"""framegate's control plane, called as an operator's program calls it: over gRPC, from another process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from candidates import Framegate

from framegate.control.v1 import (
    certificate_service_pb2,
    certificate_service_pb2_grpc,
    channel_service_pb2,
    channel_service_pb2_grpc,
    limit_service_pb2,
    limit_service_pb2_grpc,
    pool_service_pb2,
    pool_service_pb2_grpc,
)

PAGE = 1_000
SECONDS = 30.0


class Control:
    """Calls that return when what they ask for is in force, or raise."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._certificates = certificate_service_pb2_grpc.CertificateServiceStub(channel)
        self._channels = channel_service_pb2_grpc.ChannelServiceStub(channel)
        self._limits = limit_service_pb2_grpc.LimitServiceStub(channel)
        self._pools = pool_service_pb2_grpc.PoolServiceStub(channel)

    def mute(self, listener: str, *, muted: bool = True) -> int:
        """Mute every channel of a listener, or take that back; how many."""
        selector = channel_service_pb2.ChannelSelector(filter=f"listener={listener}")
        terms: dict[str, Any] = {"selector": selector, "reason": "bench", "max_affected_count": 100_000}
        if muted:
            return int(self._channels.MuteChannels(channel_service_pb2.MuteChannelsRequest(**terms), timeout=SECONDS).affected_count)
        return int(self._channels.UnmuteChannels(channel_service_pb2.UnmuteChannelsRequest(**terms), timeout=SECONDS).affected_count)

    def list(self, listener: str) -> int:
        """Every channel of a listener, page by page; how many."""
        count, token = 0, ""
        while True:
            request = channel_service_pb2.ListChannelsRequest(page_size=PAGE, page_token=token, filter=f"listener={listener}")
            answer = self._channels.ListChannels(request, timeout=SECONDS)
            count += len(answer.channels)
            token = answer.next_page_token
            if not token:
                return count

    def set_limit(self, listener: str, size: int) -> None:
        limit = limit_service_pb2.Limit(listener=listener, max_receive_size_bytes=size)
        self._limits.UpdateLimit(limit_service_pb2.UpdateLimitRequest(limit=limit), timeout=SECONDS)

    def set_pool(self, size: int) -> None:
        pool = pool_service_pb2.MemoryPool(size_bytes=size)
        self._pools.UpdateMemoryPool(pool_service_pb2.UpdateMemoryPoolRequest(memory_pool=pool), timeout=SECONDS)

    def reload_certificates(self) -> dict[str, str]:
        """Take what is new in all files that are watched: what became of each owner's."""
        answer = self._certificates.ReloadCertificates(certificate_service_pb2.ReloadCertificatesRequest(reason="bench"), timeout=SECONDS)
        return {reload.owner: certificate_service_pb2.Reload.Result.Name(reload.result) for reload in answer.reloads}


@contextmanager
def control(candidate: Framegate) -> Iterator[Control]:
    with grpc.insecure_channel(candidate.admin) as channel:
        yield Control(channel)
