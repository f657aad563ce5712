"""The Spark session that runs beside the proxy: local, quiet, and with the settings that a Python source needs.

- ``spark.python.unix.domain.socket.enabled``: over loopback TCP every task of a Python source waits some 40 ms. The sockets are in a private folder
  with a short path (a Unix socket's path must stay under 108 bytes), which is removed with the session.
- Each batch writes two files of the checkpoint. Spark's usual manager for them uses Hadoop's FileContext, which without native libraries starts some
  forty processes (``readlink``, ``chmod``) for a batch and takes 25 ms for each file; the one over FileSystem takes 8 ms. Both write a temporary file
  and rename it. The second does not detect two writers of one checkpoint; there is one, because a job holds its output.
- Spark's Python processes import pyspark from a zip in Spark's home, and Python does not cache compiled modules from a zip: each process that starts
  with a job or a query compiled all of it again, for more than a second of processor time. So a session of an installed pyspark runs from a home
  without that zip (``_home``), and its processes import the installed package.
- What Spark writes holds frames of the log, and is for owner and group as the log is (``UMASK``). This takes two settings: one for Hadoop's file
  system, which has a umask of its own, and the umask of the JVM and its Python workers.

A session that is interrupted (Ctrl-C, or another BaseException that is no ``Exception``) does not stop in order: its JVM is killed, and temporary
files are removed, at once.
"""

import contextlib
import fcntl
import importlib.util
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from framegate.proxy.tap.record import FILE_MODE, FOLDER_MODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_JAVA: Final = 17
PRIVATE: Final = "/tmp/framegate-spark-"
UMASK: Final = 0o777 & ~FOLDER_MODE
LOG_BYTES: Final = 8 << 20
TAIL_BYTES: Final = 64 << 10
_PACKAGES: Final = ("site-packages", "dist-packages")
_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_JAVA_HINT: Final = "install openjdk-17-jre-headless (or newer), or set JAVA_HOME"


class SparkMissingError(RuntimeError):
    """Something that Spark needs is not installed. The message is one line and names what to install."""


def require_java() -> str:
    """The path of the Java that Spark will start. Raises SparkMissingError: there is none, or it is older than ``MINIMUM_JAVA``."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise SparkMissingError(f"Spark needs Java {MINIMUM_JAVA}, none found{f' at {java}' if java else ''}: {_JAVA_HINT}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30)
    version = re.search(r'version "(\d+)', shown.stderr + shown.stdout)
    if version is None or int(version[1]) < MINIMUM_JAVA:
        found = f"Java {version[1]}" if version else f"no version from {java}"
        raise SparkMissingError(f"Spark needs Java {MINIMUM_JAVA}, found {found}: {_JAVA_HINT}")
    return java


def require_packages() -> None:
    """Check that the Python packages of the extra ``spark`` are installed. Raises SparkMissingError, which names those that are not."""
    missing = [name for name in ("pyspark", "deltalake", "isal", "pyarrow", "pandas", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissingError(f"not installed: {', '.join(missing)}: pip install 'framegate[spark]'")


def spark_errors() -> tuple[type[Exception], ...]:
    """The errors with which a job may end: the system's, and Spark's own where it is installed."""
    if importlib.util.find_spec("pyspark") is None:
        return (OSError,)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (OSError, Py4JError, PySparkException)


def _workers_see_this_package() -> None:
    """Add the folder of ``framegate`` to PYTHONPATH unless it is installed: Spark's Python processes inherit that variable, not sys.path."""
    root = str(Path(__file__).parents[3])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if Path(root).name not in _PACKAGES and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])


@contextlib.contextmanager
def _home(private: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started within the block runs from a Spark home that is the installed pyspark without its zips, made in ``private``. Not where
    the user names a home, or where the Python processes are another interpreter, which does not find this pyspark.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    own = os.environ.get("PYSPARK_PYTHON") == sys.executable and "spark.pyspark.python" not in settings
    if "SPARK_HOME" in os.environ or not own or installed.parent.name not in _PACKAGES or not (installed / "jars").is_dir():
        yield
        return
    home = private / "home"
    home.mkdir()
    for entry in installed.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def remove_leftovers() -> None:
    """Remove the private folders of processes that were killed."""
    for left in Path(PRIVATE).parent.glob(f"{Path(PRIVATE).name}*"):
        owner = left.name.removeprefix(Path(PRIVATE).name).partition("-")[0]
        if left.stat().st_uid == os.getuid() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def _private_folder() -> str:
    remove_leftovers()
    return tempfile.mkdtemp(prefix=f"{Path(PRIVATE).name}{os.getpid()}-", dir=Path(PRIVATE).parent)


@contextlib.contextmanager
def _stdout_as_stderr(fd: int = 2) -> Iterator[None]:
    """Processes that are started within the block have ``fd`` as standard output and error, so that their output does not mix with ours."""
    sys.stdout.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in kept:
            os.dup2(fd, number)
        yield
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)


class SparkLog:
    """The output of Spark (the JVM, its Python workers, and PySpark in this process) in a file without a name. A context manager."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - __exit__ closes it
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL) | os.O_APPEND  # of every duplicate of the descriptor
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags)
        self.stream: TextIO = io.TextIOWrapper(self._file, encoding="utf-8", errors="replace", write_through=True)  # writes to the file
        self._handler = logging.StreamHandler(self.stream)
        self._loggers = [logging.getLogger(name) for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger")]
        self._before: list[bool] = []

    @property
    def fd(self) -> int:
        return self._file.fileno()

    def __enter__(self) -> "SparkLog":
        self._before = [logger.propagate for logger in self._loggers]
        for logger in self._loggers:
            logger.addHandler(self._handler)
            logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        for logger, before in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self._handler)
            logger.propagate = before
        self.stream.close()

    def trim(self) -> None:
        if os.fstat(self.fd).st_size > LOG_BYTES:
            os.ftruncate(self.fd, 0)

    def tail(self) -> str:
        size = os.fstat(self.fd).st_size
        shown = os.pread(self.fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        return shown if not shown or shown.endswith("\n") else shown + "\n"

    def reason(self) -> str:
        """Why a JVM died for lack of memory; "" when it did not."""
        found = re.search(r"java\.lang\.OutOfMemoryError: [^\n]*", self.tail())
        return f"{found[0].strip()}: more --memory, fewer --cores or a smaller --payload" if found else ""


def open_private(path: Path) -> TextIO:
    """Open a text file for writing, emptied; a new one is for owner and group."""
    return open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, FILE_MODE))


@contextlib.contextmanager
def restricted() -> Iterator[str]:
    """Processes that are started within the block have a umask for owner and group, or a stricter one. Gives the umask in octal."""
    before = os.umask(UMASK)
    os.umask(before | UMASK)
    try:
        yield f"{before | UMASK:03o}"
    finally:
        os.umask(before)


def _descendants() -> list[int]:
    """The ids of the processes that this one started, and of those that they started; parents come before children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    fresh = [os.getpid()]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, ())]
        found += fresh
    return found


def _kill(processes: list[int]) -> None:
    """Kill processes in this order, and wait until they are gone. Meanwhile the errors of py4j's and PySpark's threads are not shown."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while processes:
            processes = [process for process in processes if not _ended(process)]
            time.sleep(0.02)


def _ended(process: int) -> bool:
    """Whether a process has ended. Waits for a child, so that it is no zombie."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(process, os.WNOHANG)[0] != 0
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@contextlib.contextmanager
def local_session(
    name: str, *, cores: int | None = None, memory: str = "1g", settings: Mapping[str, str] | None = None, log: SparkLog | None = None
) -> Iterator["SparkSession"]:
    """A session in a JVM of this process, with ``format("framegate")`` registered; it is stopped and cleaned up behind the block.

    Args:
        cores: task slots and shuffle partitions; None: the processors that this process may use.
        memory: heap of the JVM. With Arrow and the Python workers the session takes about 1.1 GB at 512m.
        log: gets the output of the JVM; None: standard error.

    Raises SparkMissingError: before anything is started.
    """
    require_java()
    require_packages()
    from pyspark.sql import SparkSession  # slow, and perhaps not installed

    from framegate.proxy.pipeline import pyspark_framegate

    _workers_see_this_package()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    slots = cores or len(os.sched_getaffinity(0))
    private = _private_folder()
    chosen = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={private} -XX:-UsePerfData",
        "spark.log.level": "ERROR",
        "spark.local.dir": private,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": private,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(slots),
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.warehouse.dir": str(Path(private) / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    before = set(_descendants())
    spark: SparkSession | None = None
    try:
        with restricted() as umask, _stdout_as_stderr(2 if log is None else log.fd), _home(Path(private), chosen):
            builder = SparkSession.builder.appName(name).master(f"local[{slots}]")
            spark = builder.config(map={"spark.hadoop.fs.permissions.umask-mode": umask, **chosen}).getOrCreate()
        pyspark_framegate.register(spark)
        yield spark
        spark.stop()
    except Exception:
        if spark is not None:
            spark.stop()
        raise
    except BaseException:  # the JVM may be in the middle of an answer, and cannot be stopped in order
        _kill([process for process in _descendants() if process not in before])
        raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
