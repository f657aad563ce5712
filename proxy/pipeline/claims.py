"""The locks of a job: it holds its output folder, and its name as a consumer of the tap, while it runs."""

import contextlib
import errno
import fcntl
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
from framegate.proxy.pipeline.delta import JOBS, STATES, has_batches
from framegate.proxy.pipeline.place import local_path
from framegate.proxy.pipeline.session import open_private
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.tap.consumer import ConsumerInUseError, claim_consumer
from framegate.proxy.tap.record import FOLDER_MODE
from framegate.proxy.tap.store import package_fault, store_at, url_fault

_LOCK: Final = "_lock"


class UsageError(ValueError):
    """The job cannot begin with these settings. The message is one line."""


@contextlib.contextmanager
def claim_output(settings: PipelineSettings) -> Iterator[None]:
    """Check source and output, and hold the output for this process alone; of a URL, the checkpoint, if it is on this host. Raises UsageError: the
    source is no directory that can be read, nor a URL that can be used; the output cannot be written to or has files of something else, another job
    holds it, or it has batches and no checkpoint that they came from; TableError: it has tables of an earlier format, or they cannot be read.
    """
    if settings.in_store:
        _check_url("--source", str(settings.source))
    elif not os.path.isdir(settings.source):
        raise UsageError(f"--source: no directory {settings.source}")
    elif not os.access(settings.source, os.R_OK | os.X_OK):
        raise UsageError(f"--source: {settings.source} cannot be read: {os.strerror(errno.EACCES)}")
    output, checkpoint = local_path(settings.output), local_path(settings.place_of_checkpoint)
    with contextlib.ExitStack() as held:
        if output is None:
            _check_store(settings)
        if output is not None or checkpoint is not None:
            lock = held.enter_context(_open_lock(checkpoint) if output is None else _open_lock_of_output(output))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"--output: another job writes to {settings.output}") from None
        if checkpoint is not None and not (checkpoint / "metadata").exists() and has_batches(settings.output):
            raise UsageError(
                f"--output: {settings.output} has batches, but there is no checkpoint at {settings.place_of_checkpoint}: a new query would count "
                "its batches from 0. Name the checkpoint they came from, or another output"
            )
        yield


def _check_url(option: str, url: str) -> None:
    """Raises UsageError: no store can be used at the URL."""
    fault = url_fault(url) or package_fault()
    if fault:
        raise UsageError(f"{option}: {url} {fault}")


def _check_store(settings: PipelineSettings) -> None:
    """Raises UsageError: the output is no URL of a store, has other files than a job's, or the job has no checkpoint."""
    url = settings.place_of_output
    _check_url("--output", url)
    if settings.checkpoint is None:
        raise UsageError("--checkpoint: an output in an object store needs a folder for Spark's checkpoint, which outlives the job")
    try:
        strange = sorted(set(store_at(url).folders()) - {*TABLE_SCHEMAS, STATES, JOBS})
    except OSError as error:
        raise UsageError(f"--output: {error}") from error
    if strange:
        raise UsageError(f"--output: {url} has files of something else ({strange[0]}); name a new URL")


def _open_lock_of_output(output: Path) -> IO[str]:
    """The lock file in the output; makes the folder. Raises UsageError: the folder cannot be written to, or has other files than a job's."""
    if output.is_dir() and not (output / _LOCK).exists() and not has_batches(output):
        strange = sorted({path.name for path in output.iterdir()} - {"lost+found"})
        if strange:
            raise UsageError(f"--output: {output} has files of something else ({strange[0]}); name a new folder")
    return _open_lock(output)


def _open_lock(folder: Path | None) -> IO[str]:
    """The lock file in a folder, which is made. Raises UsageError: it cannot be written to."""
    assert folder is not None, "one of the two is on this host"
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        return open_private(folder / _LOCK)
    except OSError as error:
        raise UsageError(f"--output: {folder} cannot be written to: {error.strerror}") from error


@contextlib.contextmanager
def claim_name(settings: PipelineSettings, emit: Callable[[dict[str, Any]], None]) -> Iterator[bool]:
    """Hold the consumer's name. Gives whether retention knows it; a tap that is mounted read-only can be read without, and nothing is written to an
    object store. Raises UsageError: another job has the name.
    """
    if not settings.consumer or settings.in_store:
        yield False
        return
    registered = False
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(claim_consumer(str(settings.source), settings.consumer, settings.place_of_checkpoint))
            registered = True
        except ConsumerInUseError as error:
            remove = shlex.join(["framegate", "tap", "consumers", "remove", str(settings.source), settings.consumer])
            raise UsageError(f"--consumer: {error}. Name another, or, when that job is no more: {remove}") from error
        except OSError as error:
            reason = f"{error.filename or settings.source}: {error.strerror}"
            emit({"event": "unregistered", "consumer": settings.consumer, "reason": reason})
        yield registered
