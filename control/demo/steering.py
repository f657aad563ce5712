"""What the demo asks of the proxy: the same gRPC calls as the command line's, over the Unix socket, and a scrape of its metrics."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Final

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from prometheus_client.parser import text_string_to_metric_families

from framegate.control.v1 import channel_service_pb2, limit_service_pb2, pool_service_pb2, proxy_service_pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub

_TIMEOUT_S: Final = 10.0
_PAGE_SIZE: Final = 500

Channel = channel_service_pb2.Channel


def cause_text(cause: "channel_service_pb2.Cause.ValueType") -> str:
    """The word of a cause in log and metrics."""
    return channel_service_pb2.Cause.Name(cause).removeprefix("CAUSE_").lower()


class Steering:
    """Calls on a running proxy at ``unix:PATH``, about the listener of the load. Every method raises ``grpc.RpcError`` when the call fails."""

    def __init__(self, address: str, listener: str) -> None:
        self._listener = listener
        self._channel = grpc.insecure_channel(address)
        self._channels = ChannelServiceStub(self._channel)
        self._limits = LimitServiceStub(self._channel)
        self._pools = PoolServiceStub(self._channel)

    def __enter__(self) -> "Steering":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def proxy(self) -> proxy_service_pb2.Proxy:
        return ProxyServiceStub(self._channel).GetProxy(proxy_service_pb2.GetProxyRequest(), timeout=_TIMEOUT_S).proxy

    def find(self, local_port: int) -> Channel | None:
        """The open channel of the client with this port."""
        return next((channel for channel in self._open() if channel.peer_address.endswith(f":{local_port}")), None)

    def find_closed(self, local_port: int) -> Channel | None:
        """The latest closed channel of a client with this port."""
        request = channel_service_pb2.ListClosedChannelsRequest(page_size=1_000, filter=f"listener={self._listener}")
        found = self._channels.ListClosedChannels(request, timeout=_TIMEOUT_S).channels
        return next((channel for channel in found if channel.peer_address.endswith(f":{local_port}")), None)

    def describe(self, channel_id: str) -> Channel:
        return self._channels.GetChannel(channel_service_pb2.GetChannelRequest(id=channel_id), timeout=_TIMEOUT_S).channel

    def mute(self, channel_id: str, reason: str) -> None:
        self._channels.MuteChannels(channel_service_pb2.MuteChannelsRequest(selector=_one(channel_id), reason=reason), timeout=_TIMEOUT_S)

    def unmute(self, channel_id: str, reason: str) -> None:
        self._channels.UnmuteChannels(channel_service_pb2.UnmuteChannelsRequest(selector=_one(channel_id), reason=reason), timeout=_TIMEOUT_S)

    def limit(self) -> int:
        request = limit_service_pb2.GetLimitRequest(listener=self._listener)
        return int(self._limits.GetLimit(request, timeout=_TIMEOUT_S).limit.max_receive_size_bytes)

    def set_limit(self, size: int) -> None:
        limit = limit_service_pb2.Limit(listener=self._listener, max_receive_size_bytes=size)
        mask = FieldMask(paths=["max_receive_size_bytes"])
        self._limits.UpdateLimit(limit_service_pb2.UpdateLimitRequest(limit=limit, update_mask=mask), timeout=_TIMEOUT_S)

    def set_pool_size(self, size: int) -> None:
        pool = pool_service_pb2.MemoryPool(size_bytes=size)
        request = pool_service_pb2.UpdateMemoryPoolRequest(memory_pool=pool, update_mask=FieldMask(paths=["size_bytes"]))
        self._pools.UpdateMemoryPool(request, timeout=_TIMEOUT_S)

    def pool(self) -> pool_service_pb2.MemoryPool:
        return self._pools.GetMemoryPool(pool_service_pb2.GetMemoryPoolRequest(), timeout=_TIMEOUT_S).memory_pool

    def processor_pids(self) -> list[int]:
        reply = self._pools.GetProcessorPool(pool_service_pb2.GetProcessorPoolRequest(), timeout=_TIMEOUT_S)
        return [processor.pid for processor in reply.processor_pool.processors if processor.pid]

    def _open(self) -> Iterator[Channel]:
        request = channel_service_pb2.ListChannelsRequest(page_size=_PAGE_SIZE, filter=f"listener={self._listener}")
        while True:
            page = self._channels.ListChannels(request, timeout=_TIMEOUT_S)
            yield from page.channels
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


def _one(channel_id: str) -> channel_service_pb2.ChannelSelector:
    return channel_service_pb2.ChannelSelector(channels=channel_service_pb2.ChannelIds(ids=[channel_id]))


class Metrics:
    """One scrape; ``text`` is in Prometheus' text format."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    @classmethod
    def scrape(cls, address: str) -> "Metrics":
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            return cls(reply.read().decode())

    def sum(self, name: str, **labels: str) -> int:
        """The sum over all samples of a metric with these labels; 0 if there is no such metric."""
        return int(sum(one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()))

    def by(self, name: str, label: str) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for sample in self._samples:
            if sample.name == name and sample.value:
                sums[sample.labels.get(label, "")] += int(sample.value)
        return dict(sums)
