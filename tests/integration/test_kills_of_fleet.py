"""From the generator to the tables: whatever is killed or fails, whenever, each frame is a row once, or a gap says that it is missing. So is each
request of a real Kafka broker's clients.

Each kind of fault once. More of them, drawn from ``FRAMEGATE_SEED`` (default 1), with ``FRAMEGATE_KILLS=200``; what happened is printed (``-s``).
"""

import os
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from tests.fakes.kills_of_fleet import FAULTS, FAULTS_OF_DISKS, FleetCampaign
from tests.fakes.real_kafka import HAS_BROKER
from tests.fakes.s3 import S3
from tests.fakes.small_disk import tiny_disk
from tests.fakes.spark_cluster import standalone
from tests.fakes.tls import TlsWorld

KILLS = int(os.environ.get("FRAMEGATE_KILLS", "0"))
SEED = int(os.environ.get("FRAMEGATE_SEED", "1"))


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.kafka
@HAS_BROKER
@pytest.mark.timeout(3600 if KILLS else 600)
def test_whatever_fails_each_frame_is_a_row_once_or_counted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3: S3, tls_world: TlsWorld
) -> None:
    directory, began = tmp_path / "tap", time.monotonic()
    with (
        tiny_disk(directory, 64) as disk,
        tiny_disk(tmp_path / "state", 16),
        standalone(tmp_path_factory.mktemp("cluster"), tmp_path) as cluster,
        FleetCampaign(tmp_path / "framegate", directory, SEED, s3, tls_world, cluster, disk) as campaign,
    ):
        kinds = [*FAULTS, *(FAULTS_OF_DISKS if disk else ())]
        chosen = random.Random(SEED).choices(kinds, k=KILLS) if KILLS else kinds
        print(f"seed {SEED}, {len(chosen)} faults, disks that can be filled: {disk}")
        for number, kind in enumerate(chosen, 1):
            print(f"{time.monotonic() - began:6.1f} s: {number}: {kind}", flush=True)
            campaign.fault(kind)
        accounts = campaign.judge()
        print(f"{time.monotonic() - began:6.1f} s: {campaign.report(accounts)}")
