"""From the generator to the tables: whatever is killed or fails, whenever, each frame is a row once, or a gap says that it is missing."""

import os
import random
from pathlib import Path

import pytest

from tests.fakes.kills_of_fleet import FAULTS, FAULTS_OF_DISKS, FleetCampaign
from tests.fakes.s3 import S3
from tests.fakes.small_disk import tiny_disk
from tests.fakes.spark_cluster import standalone
from tests.fakes.tls import TlsWorld

KILLS = int(os.environ.get("FRAMEGATE_KILLS", "0"))
SEED = int(os.environ.get("FRAMEGATE_SEED", "1"))


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(3600 if KILLS else 600)
def test_whatever_fails_each_frame_is_a_row_once_or_counted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3: S3, tls_world: TlsWorld
) -> None:
    directory = tmp_path / "tap"
    with (
        tiny_disk(directory, 64) as disk,
        standalone(tmp_path_factory.mktemp("cluster"), tmp_path) as cluster,
        FleetCampaign(tmp_path / "framegate", directory, SEED, s3, tls_world, cluster, disk) as campaign,
    ):
        found = [*FAULTS, *(FAULTS_OF_DISKS if disk else ())]
        t = __import__("time").monotonic
        b = t()
        for kind in random.Random(SEED).choices(found, k=KILLS) if KILLS else found:
            print(kind, round(t() - b, 1), flush=True)
            campaign.fault(kind)
        print("judge", round(t() - b, 1), flush=True)
        campaign.judge()
        print("end", round(t() - b, 1), flush=True)
