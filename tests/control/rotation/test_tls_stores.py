"""New certificates go to every processor or to none; the processors are fakes, the judge is the real one."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from framegate.control.configuration.child import Loaded
from framegate.control.configuration.tls_files import describe_files, read_tls_files
from framegate.proxy.config.tls import ListenerTls
from tests.fakes.certificates import Authority
from tests.fakes.fleet import Fleet, facts, run, until


class Renewable:
    """The files of the listeners a and b."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.paths = self.authority.leaf("server")

    @property
    def tls(self) -> ListenerTls:
        return ListenerTls(certificate=self.paths[0], key=self.paths[1])

    def renew(self, **leaf: Any) -> None:
        for path, data in zip(self.paths, self.authority.leaf_pem("server", **leaf), strict=True):
            Path(path).write_bytes(data)


@pytest.fixture
def files(tmp_path: Path) -> Renewable:
    return Renewable(tmp_path)


def results(outcomes: list[Any]) -> list[tuple[str, str]]:
    return [(item.owner, item.result) for item in outcomes]


async def numbers(made: Fleet) -> list[dict[str, int]]:
    return [each["stores"] for each in await facts(made)]


def test_they_are_in_force_everywhere_and_a_processor_that_starts_has_them(files: Renewable) -> None:
    async def scenario(made: Fleet) -> None:
        (first,) = made.certificates.statuses(made.rotation)
        files.renew()
        assert results(await made.rotation.reload()) == [("listener/a", "replaced")]
        assert await numbers(made) == [{"listener/a": 2}, {"listener/a": 2}]
        (second,) = made.certificates.statuses(made.rotation)
        assert (first.store, second.store, second.owner, second.use) == (1, 2, "listener/a", "certificate")
        assert second.fingerprint != first.fingerprint
        assert made.desired.stores["listener/a"].shown == second.fingerprint[:16]
        assert made.certificates.validity == {"listener/a": (second.begins, second.ends)}
        os.kill(made.supervisor.running[0].pid, signal.SIGKILL)
        await until(lambda: len(made.supervisor.running) < 2)
        await until(lambda: len(made.supervisor.running) == 2)
        assert await numbers(made) == [{"listener/a": 2}, {"listener/a": 2}]
        assert results(await made.rotation.reload()) == [("listener/a", "unchanged")]
        assert made.judged == 1

    run(scenario, tls=files.tls)


@pytest.mark.parametrize("mode", ["refuse@1", "refuse@0"])
def test_one_processor_that_refuses_keeps_them_from_all(files: Renewable, mode: str) -> None:
    async def scenario(made: Fleet) -> None:
        files.renew()
        (outcome,) = await made.rotation.reload()
        assert (outcome.result, "the fake was told to" in outcome.reason) == ("refused", True)
        assert await numbers(made) == [{"listener/a": 1}, {"listener/a": 1}]
        assert made.desired.stores["listener/a"].number == 1
        (listed,) = made.certificates.statuses(made.rotation)
        assert (listed.store, "the fake was told to" in listed.error) == (1, True)
        assert made.meters.value("reload.count", "tls", "refused") == 1

    run(scenario, mode=mode, tls=files.tls)


def test_what_is_no_good_asks_no_processor(files: Renewable) -> None:
    async def scenario(made: Fleet) -> None:
        revision = made.desired.revision
        Path(files.paths[1]).write_bytes(files.authority.leaf_pem("server")[1])
        (outcome,) = await made.rotation.reload()
        assert (outcome.file, outcome.reason) == (files.paths[1], "is not the key of the certificate")
        assert made.desired.revision == revision

    run(scenario, tls=files.tls)


def test_a_listener_that_is_removed_meanwhile_keeps_no_other_back(files: Renewable) -> None:
    async def scenario(made: Fleet) -> None:
        async def judge(question: Any) -> Any:
            answer = await made._check(question)
            config = dataclasses.replace(made.desired.config, listeners=made.desired.config.listeners[:1])
            await made.steering.configuration.apply(Loaded(config, [], read_tls_files(config), described))
            return answer

        described = describe_files(read_tls_files(made.desired.config))
        made.certificates._validator = judge
        files.renew()
        assert results(await made.rotation.reload()) == [("listener/a", "replaced"), ("listener/b", "unchanged")]
        assert {owner: store.number for owner, store in made.desired.stores.items()} == {"listener/a": 2}
        assert made.log.events("task_failed") == []

    run(scenario, tls=files.tls, others=("b",))
