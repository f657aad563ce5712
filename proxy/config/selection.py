"""Decodes words of tap rules: names of Kafka's APIs, and ranges of a body's bytes. Control uses it to validate rules, a processor to apply them."""

import itertools
import re
from typing import Final, NamedTuple

from framegate.proxy.config.model import MAX_INT32

__all__ = ["KAFKA_APIS", "ByteRange", "api_key", "byte_range", "overlap"]

# Kafka's APIs by key (protocol messages of 4.x); others are shown as api-<key>.
KAFKA_APIS: Final = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    34: "AlterReplicaLogDirs",
    35: "DescribeLogDirs",
    36: "SaslAuthenticate",
    37: "CreatePartitions",
    38: "CreateDelegationToken",
    39: "RenewDelegationToken",
    40: "ExpireDelegationToken",
    41: "DescribeDelegationToken",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    50: "DescribeUserScramCredentials",
    51: "AlterUserScramCredentials",
    55: "DescribeQuorum",
    57: "UpdateFeatures",
    60: "DescribeCluster",
    61: "DescribeProducers",
    64: "UnregisterBroker",
    65: "DescribeTransactions",
    66: "ListTransactions",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
    72: "PushTelemetry",
    74: "ListConfigResources",
    75: "DescribeTopicPartitions",
    76: "ShareGroupHeartbeat",
    77: "ShareGroupDescribe",
    78: "ShareFetch",
    79: "ShareAcknowledge",
}

MAX_API: Final = 32767
_KEYS: Final = {name.lower(): key for key, name in KAFKA_APIS.items()}
_RANGE: Final = re.compile(r"(\d{1,10})-(\d{0,10})")


class ByteRange(NamedTuple):
    """The bytes of a body from ``start`` to before ``end``, as far as they exist; 0 <= start < end <= 2147483647."""

    start: int
    end: int


def api_key(text: str) -> int:
    """The key of a Kafka API from its name in any case, the key itself, or ``api-<key>``. Raises ValueError."""
    known = _KEYS.get(text.lower())
    if known is not None:
        return known
    number = text.lower().removeprefix("api-")
    if not (number.isascii() and number.isdigit() and int(number) <= MAX_API):
        raise ValueError("not a Kafka API: write its name, as in Produce, or its key")
    return int(number)


def byte_range(text: str) -> ByteRange:
    """The range of ``0-15`` (the first 16 bytes) or ``64-`` (all from the 65th on). Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a range of bytes: write the first and the last, as in 0-15, or 64- for the rest")
    start = int(match[1])
    end = int(match[2]) + 1 if match[2] else MAX_INT32
    if not start < end <= MAX_INT32:
        raise ValueError(f"not a range of bytes: the first is after the last, or the last above {MAX_INT32 - 1}")
    return ByteRange(start, end)


def overlap(ranges: list[ByteRange]) -> bool:
    """Whether two of the ranges share a byte."""
    ordered = sorted(ranges)
    return any(before.end > after.start for before, after in itertools.pairwise(ordered))
