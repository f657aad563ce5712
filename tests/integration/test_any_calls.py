"""Any calls at all, by eight clients at once: good, bad, raw, huge, cancelled ones.

Environment variables: ``FRAMEGATE_CONTROL_CALLS`` (1,500; 25,000 take two minutes), ``FRAMEGATE_CONTROL_SEED`` (1).
"""

import collections
import concurrent.futures
import contextlib
import os
import random
from pathlib import Path
from typing import Final

import grpc
import pytest

from framegate.control.demo.certificates import Certificates
from tests.fakes.any_call import any_call, reason_of, send
from tests.fakes.live_node import Node, check_rows, check_sizes, settled

CALLS: Final = int(os.environ.get("FRAMEGATE_CONTROL_CALLS", "1500"))
SEED: Final = int(os.environ.get("FRAMEGATE_CONTROL_SEED", "1"))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_any_calls_leave_nothing_behind(tmp_path: Path, made: Certificates) -> None:
    """No call fails with a fault of ours, a refusal has a reason, changes are possible afterwards, and nothing has grown."""
    counts: collections.Counter[str] = collections.Counter()
    faults: list[str] = []

    def client(number: int, count: int) -> None:
        chance = random.Random(number)
        with node.proxy.api() as channel:
            for _ in range(count):
                method, data, ending = any_call(chance)
                code = "OK"
                try:
                    send(channel, method, data, **ending)
                except grpc.FutureCancelledError:
                    code = "cancelled"
                except grpc.RpcError as error:
                    code = error.code().name  # type: ignore[attr-defined]
                    explained = ending or reason_of(error) or len(data) > 1 << 20  # which gRPC itself refuses
                    if code in ("INTERNAL", "UNKNOWN", "DATA_LOSS") or not explained:
                        faults.append(f"{method} {data[:200]!r} ({len(data)} bytes) {ending}: {error}")
                counts[code] += 1

    with contextlib.ExitStack() as undo:
        node, sizes = Node(tmp_path, made, undo), []
        for first, count in ((SEED * 100, CALLS // 5), (SEED * 100 + 50, CALLS - CALLS // 5)):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(client, range(first, first + 8), [count // 8] * 8))
            assert not faults, "\n".join(faults[:10])
            sizes.append(settled(node))
        print(dict(counts))
        check_sizes(*sizes, CALLS)
        check_rows(node.proxy)
