"""Kafka's APIs that have series of their own."""

from typing import Final

__all__ = ["MEASURED_APIS"]

MEASURED_APIS: Final = (
    "Produce",
    "Fetch",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "OffsetFetch",
    "FindCoordinator",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "SaslHandshake",
    "ApiVersions",
    "CreateTopics",
    "InitProducerId",
    "AddPartitionsToTxn",
    "EndTxn",
    "TxnOffsetCommit",
    "DescribeConfigs",
    "SaslAuthenticate",
    "DescribeCluster",
    "ConsumerGroupHeartbeat",
    "ShareFetch",
    "other",
)
"""Those of producers and consumers, and what every client begins with; by name, as in ``framegate.proxy.config.selection``."""
