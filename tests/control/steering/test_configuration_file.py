"""The file beside what is in force: applied by a call, a signal or by itself, all of it or nothing; the processors are fakes."""

import asyncio
import dataclasses
import functools
import tempfile
import unittest.mock
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.control.configuration.difference import differences
from framegate.control.configuration.document import ConfigurationError
from framegate.control.configuration.writing import as_yaml
from framegate.control.errors import AbortedError, DeniedError, EtagError, FailedPreconditionError, UnavailableError
from framegate.control.events import Event, Row
from framegate.control.files import digest
from framegate.control.steering.configuration import Applied
from framegate.control.steering.configuration_file import KIND, ConfigurationFile
from framegate.proxy.config.model import FileConfig, HandlersConfig
from framegate.proxy.config.sasl import UpstreamSasl
from tests.fakes.plane import FakePlane, fake_config

SIZE = "listeners[kafka].max_receive_size"


class Bench:
    """A plane whose file is there, and the rows that are published."""

    def __init__(self, folder: Path) -> None:
        self.plane = FakePlane(fake_config(f"unix:{folder}/admin.sock"))
        self.made: ConfigurationFile = self.plane.parts.configuration_file
        self._subscription = self.plane.parts.events.subscribe()

    def close(self) -> None:
        self._subscription.close()
        self.plane.close()

    def rows(self) -> list[Row]:
        """Those since the last call."""
        return [
            item.row
            for item in self._subscription.take()
            if isinstance(item, Event) and item.name in ("configuration_applied", "configuration_refused")
        ]

    def text(self, size: int = 4096, **values: Any) -> str:
        return as_yaml(dataclasses.replace(self.plane.limited(size), **values), "/")

    @property
    def size(self) -> int:
        return self.plane.config.listeners[0].max_receive_size


def beside(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run_test() -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(Path(folder))
                try:
                    await test(bench)
                finally:
                    bench.close()

        asyncio.run(main())

    del run_test.__wrapped__
    return run_test


@beside
async def test_a_text_is_applied_and_is_then_what_differs_from_the_file(bench: Bench) -> None:
    etag = bench.made.etag
    loaded, applied = await bench.made.apply(bench.text(), etag)
    assert ([item.path for item in applied.differences], loaded.digest, bench.size) == ([SIZE], b"", 4096)
    assert [(item.path, *item.texts) for item in bench.made.by_hand] == [(SIZE, "100MiB", "4KiB")]
    assert bench.rows() == [
        {"event": "configuration_applied", "by": "call", "file": "", "count": 1, "keys": [SIZE], "etag": bench.made.etag, "pending": []}
    ]
    with pytest.raises(EtagError):
        await bench.made.apply(bench.text(1), etag)
    await bench.made.apply(bench.text())
    assert bench.rows() == [], "nothing has changed"


@beside
async def test_a_check_alone_changes_nothing(bench: Bench) -> None:
    _, applied = await bench.made.apply(bench.text(), validate_only=True)
    assert ([item.path for item in applied.differences], bench.made.by_hand, bench.rows(), bench.size) == ([SIZE], (), [], 100 * 1024**2)


@beside
async def test_what_cannot_be_applied_changes_nothing(bench: Bench) -> None:
    cases: list[tuple[type[Exception], str, Exception | None]] = [
        (ConfigurationError, "node: [", None),
        (ConfigurationError, bench.text(-1), None),
        (FailedPreconditionError, bench.text(node="other"), None),
        (AbortedError, bench.text(), AbortedError("no", reason="CHANGE_REFUSED")),
    ]
    wrong = []
    for kind, text, bench.plane.failure in cases:
        try:
            await bench.made.apply(text)
        except (ConfigurationError, FailedPreconditionError, AbortedError) as error:
            if type(error) is kind:
                continue
        wrong.append((kind, text))
    assert (wrong, bench.made.by_hand, bench.rows()) == ([], (), [])


@beside
async def test_the_file_replaces_what_was_set_by_hand(bench: Bench) -> None:
    Path(bench.made.path).write_text(bench.text())
    bench.plane.limit(1)
    assert [item.path for item in bench.made.by_hand] == [SIZE]
    assert await bench.made.reload() == "applied, 1 value changed"
    assert (bench.size, bench.made.by_hand, bench.rows()[0]["file"]) == (4096, (), bench.made.path)
    assert await bench.made.reload() == "applied, 0 values changed"


@beside
async def test_a_file_that_is_refused_at_a_signal_is_a_row_and_what_was_loaded_stays(bench: Bench) -> None:
    cases: dict[str | None, str] = {
        None: "cannot be read: No such file or directory",
        bench.text(-1): "listeners[0].max_receive_size = -1B: is not a size",
        bench.text(node="other"): "a restart is needed to change node",
    }
    file = Path(bench.made.path)
    for text, words in cases.items():
        if text is not None:
            file.write_text(text)
        said = await bench.made.reload()
        (row,) = bench.rows()
        assert said == f"refused: {row['reason']}"
        assert words in said
        assert (row["event"], row["file"], bool(row["faults"])) == ("configuration_refused", bench.made.path, "restart" not in words)
    assert bench.made.by_hand == ()


@beside
async def test_a_change_that_is_decided_but_not_confirmed_is_the_files_and_only_then(bench: Bench) -> None:
    Path(bench.made.path).write_text(bench.text())
    for reason in ("PROCESSOR_START_FAILED", "CHANGE_PENDING"):
        bench.plane.failure = error = UnavailableError("late", reason=reason)
        if reason == "CHANGE_PENDING":
            before, after = bench.plane.config, bench.plane.limited(4096)
            error.changed = Applied(before, after, differences(before, after), ("a processor has not confirmed it",))
        with pytest.raises(UnavailableError):
            await bench.made.apply()
        assert bench.made.config.listeners[0].max_receive_size == (4096 if error.changed else 100 * 1024**2)
        said = await bench.made.reload()
        assert said == ("applied, 1 value changed; a processor has not confirmed it" if error.changed else "refused: late")
        assert [row["event"] for row in bench.rows()] == (["configuration_applied"] * 2 if error.changed else ["configuration_refused"])
        taken = await bench.made.take({KIND: {bench.made.path: bench.text().encode()}})
        assert bool(taken) is (error.changed is None)
        bench.rows()


@beside
async def test_a_changed_file_is_taken_or_refused_in_words(bench: Bench) -> None:
    def contents(text: str | bytes) -> dict[str, dict[str, bytes]]:
        return {KIND: {bench.made.path: text if isinstance(text, bytes) else text.encode()}}

    assert await bench.made.take(contents(bench.text())) == {}
    assert (bench.size, bench.rows()[0]["by"], bench.made.by_hand) == (4096, "watch", ())
    texts: dict[str | bytes, str] = {b"\xff": "is not UTF-8", "node: [": "is not YAML", bench.text(node="other"): "a restart is needed"}
    for text, words in texts.items():
        refused = await bench.made.take(contents(text))
        assert words in str(refused[KIND]), (text, refused)
    assert (bench.size, bench.rows()) == (4096, [])


@beside
async def test_what_the_container_decides_is_not_set_by_hand(bench: Bench) -> None:
    pool = bench.plane.parts.pool
    asked = dataclasses.replace(bench.plane.config, processors=0, memory_pool=dataclasses.replace(bench.plane.config.memory_pool, size=0))
    Path(bench.made.path).write_text(as_yaml(asked, "/"))
    bench.made.config = asked
    assert {item.path for item in bench.made.by_hand} == {"processors", "memory_pool.size"}
    pool.processors_origin = pool.size_origin = "container"
    assert (bench.made.by_hand, bench.made.in_force) == ((), asked)


@beside
async def test_the_file_is_watched_by_its_contents_and_applied_by_itself_only_if_wanted(bench: Bench) -> None:
    rotation = bench.made._rotation
    file = Path(bench.made.path)
    file.write_text(bench.text())
    await bench.made.apply()
    assert rotation._watched[KIND, KIND].in_force == digest({str(file): file.read_bytes()})
    for _ in range(2):
        await rotation.look()
    assert (bench.made.changed, bench.made.refusal) == (False, None)
    file.write_text(bench.text(8192))
    for _ in range(3):
        await rotation.look()
    assert (bench.made.changed, bench.size) == (True, 4096)
    bench.plane.desired.config = dataclasses.replace(bench.plane.config, config=FileConfig(watch=True))
    await rotation.look()
    assert (bench.made.changed, bench.size) == (False, 8192)


@beside
async def test_what_a_signal_or_the_watch_applies_leaves_an_audit_row_that_chains_with_those_of_calls(bench: Bench) -> None:
    Path(bench.made.path).write_text(bench.text(4096))
    await bench.made.reload()
    assert await bench.made.take({KIND: {bench.made.path: bench.text(8192).encode()}}) == {}
    Path(bench.made.path).write_text("node: [")
    await bench.made.reload()
    bench.plane.audit_failure = UnavailableError("the disk is full", reason="AUDIT_BLOCKED")
    Path(bench.made.path).write_text(bench.text(1))
    assert await bench.made.reload() == "refused: the disk is full"
    found = [(row["who"], row["before"], row["after"], row["result"], row["error"]) for row in bench.plane.audits]
    assert found == [
        ("SIGHUP", {SIZE: "100MiB"}, {SIZE: "4KiB"}, "OK", ""),
        ("config.watch", {SIZE: "4KiB"}, {SIZE: "8KiB"}, "OK", ""),
        ("SIGHUP", None, None, "FAILED", "ConfigurationError"),
    ]
    assert (bench.size, bench.plane.audit_places) == (8192, 0)


@beside
async def test_a_text_of_a_caller_elsewhere_names_no_file_socket_or_handler_that_the_configuration_does_not_name_and_none_is_read(
    bench: Bench,
) -> None:
    await bench.made.apply(bench.text(2048), local=False)
    kafka, plain = bench.plane.config.listeners
    brokers, secret = bench.plane.config.upstreams[0], UpstreamSasl(mechanism="PLAIN", user="me", password_file="/etc/shadow")
    texts = {
        "handlers.path[0]": bench.text(handlers=HandlersConfig(path=("/root",))),
        "listeners[1].handler": bench.text(
            listeners=(kafka, dataclasses.replace(plain, handler="os:system")), upstreams=(dataclasses.replace(brokers, max_receive_size=4096),)
        ),
        "upstreams[0].endpoints[0]": bench.text(upstreams=(dataclasses.replace(brokers, endpoints=("unix:/run/docker.sock",)),)),
        "upstreams[1].sasl.password_file": bench.text(upstreams=(brokers, dataclasses.replace(brokers, name="other", sasl=secret))),
    }
    wrong = []
    with unittest.mock.patch("framegate.control.configuration.load.apply_machine", side_effect=AssertionError("files are looked at")):
        for key, text in texts.items():
            for validate_only in (False, True):
                try:
                    await bench.made.apply(text, local=False, validate_only=validate_only)
                except DeniedError as error:
                    if (error.reason, error.metadata) == ("LOCAL_SOCKET_NEEDED", {"keys": key}):
                        continue
                except ConfigurationError as error:
                    wrong.append(str(error))
                wrong.append(key)
        with pytest.raises(ConfigurationError):
            await bench.made.apply(bench.text(-1, handlers=HandlersConfig(path=("/root",))), local=False)
    assert (wrong, bench.size) == ([], 2048)
