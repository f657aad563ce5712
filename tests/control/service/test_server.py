"""The socket: its mode, its lock, and its end."""

import asyncio
import gc
import stat
from pathlib import Path

import pytest

from framegate.control.errors import StartError
from framegate.control.service import start
from framegate.control.v1.upstream_service_pb2 import ListUpstreamsRequest
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from tests.control.service.served import served
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.serving import Serving, run


def test_only_the_owner_may_open_the_socket_and_it_is_gone_afterwards() -> None:
    async def body(at: Serving) -> Path:
        path = Path(at.service.address.removeprefix("unix:"))
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return path

    assert not run(body).exists()


@served()
async def test_a_second_instance_is_refused_and_the_first_goes_on(at: Serving) -> None:
    with pytest.raises(StartError) as caught:
        await start(at.plane.parts, at.plane.config)
    assert caught.value.reason == "ADMIN_ADDRESS_IN_USE"
    assert len(at.plane.subscribers) == 1
    await UpstreamServiceStub(at.channel).ListUpstreams(ListUpstreamsRequest())


def test_a_socket_file_left_behind_does_not_matter(tmp_path: Path) -> None:
    async def main() -> None:
        plane = FakePlane(fake_config(f"unix:{tmp_path}/new/admin.sock", health=None))
        for _ in range(2):
            service = await start(plane.parts, plane.config)
            assert service.health_address is None
            await service.stop(0)
            import socket

            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(tmp_path / "new" / "admin.sock"))
        plane.close()

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(8))
def test_a_start_that_is_cancelled_at_any_step_leaves_nothing_and_fails_nowhere(tmp_path: Path, steps: int) -> None:
    failures: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        plane = FakePlane(fake_config(f"unix:{tmp_path}/admin.sock", health="127.0.0.1:0"))
        starting = asyncio.ensure_future(start(plane.parts, plane.config))
        for _ in range(steps):
            await asyncio.sleep(0)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
        else:
            await starting.result().stop(0)
        assert plane.subscribers == []
        assert not (tmp_path / "admin.sock").exists()
        service = await start(plane.parts, plane.config)
        await service.stop(0)
        plane.close()

    asyncio.run(main())
    gc.collect()
    assert failures == []


@pytest.mark.parametrize(
    ("admin", "health", "reason"),
    [
        ("unix:{folder}/" + "x" * 108, None, "ADMIN_ADDRESS_UNUSABLE"),
        ("127.0.0.1:0", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:/proc/none/admin.sock", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:{folder}/file", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:{folder}/admin.sock", "192.0.2.1:1", "HEALTH_ADDRESS_UNUSABLE"),
    ],
)
def test_an_address_that_cannot_be_served_says_so(tmp_path: Path, admin: str, health: str | None, reason: str) -> None:
    (tmp_path / "file").write_text("in the way")

    async def main() -> None:
        plane = FakePlane(fake_config(admin.format(folder=tmp_path), health))
        with pytest.raises(StartError) as caught:
            await start(plane.parts, plane.config)
        assert caught.value.reason == reason
        assert plane.subscribers == []
        assert not (tmp_path / "admin.sock").exists()
        plane.close()

    asyncio.run(main())
