"""The locks of a job: it holds its output folder, and its name as a consumer of the tap, while it runs."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from framegate.proxy.pipeline.delta import has_batches
from framegate.proxy.pipeline.session import open_private
from framegate.proxy.pipeline.settings import PipelineSettings, local_path
from framegate.proxy.tap.consumer import ConsumerInUseError, claim_consumer
from framegate.proxy.tap.record import FOLDER_MODE
from framegate.proxy.tap.store import package_fault, url_fault

_LOCK: Final = "_lock"


class UsageError(ValueError):
    """The job cannot begin with these settings. The message is one line."""


@contextlib.contextmanager
def claim_output(settings: PipelineSettings) -> Iterator[None]:
    """Check source and output, and hold the output for this process alone. Raises UsageError: the source is no directory that can be read, nor a URL
    that can be used; the output cannot be written to or has files of something else, another job holds it, or it has batches and no checkpoint that
    they came from; TableError: it has tables of an earlier format, or they cannot be read.
    """
    if settings.in_store:
        fault = url_fault(str(settings.source)) or package_fault()
        if fault:
            raise UsageError(f"--source: {settings.source} {fault}")
    elif not os.path.isdir(settings.source):
        raise UsageError(f"--source: no directory {settings.source}")
    elif not os.access(settings.source, os.R_OK | os.X_OK):
        raise UsageError(f"--source: {settings.source} cannot be read: {os.strerror(errno.EACCES)}")
    output = local_path(settings.output)
    if output is None:
        raise UsageError(f"--output: {settings.output} is no folder of this host")
    with _open_lock(output) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--output: another job writes to {settings.output}") from None
        checkpoint = local_path(settings.place_of_checkpoint)
        if has_batches(output) and checkpoint is not None and not (checkpoint / "metadata").exists():
            raise UsageError(
                f"--output: {settings.output} has batches, but there is no checkpoint at {settings.place_of_checkpoint}: a new query would count "
                "its batches from 0. Name the checkpoint they came from, or another output"
            )
        yield


def _open_lock(output: Path) -> IO[str]:
    """The lock file in the output; makes the folder. Raises UsageError: the folder cannot be written to, or has other files than a job's."""
    try:
        output.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        ours = (output / _LOCK).exists() or has_batches(output)
        strange = () if ours else sorted({path.name for path in output.iterdir()} - {"lost+found"})
        if strange:
            raise UsageError(f"--output: {output} has files of something else ({strange[0]}); name a new folder")
        return open_private(output / _LOCK)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be written to: {error.strerror}") from error


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
            raise UsageError(
                f"--consumer: {error}. Name another, or, when that job is no more: framegate tap consumers remove {settings.consumer}"
            ) from error
        except OSError as error:
            reason = f"{error.filename or settings.source}: {error.strerror}"
            emit({"event": "unregistered", "consumer": settings.consumer, "reason": reason})
        yield registered
