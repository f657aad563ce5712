"""What every test may rely on: `tests.fakes` can be imported, the code under test is the build that was asked for, the first test says so.

`make test` runs the tests of the checkout over the installed wheel, so the checkout itself must not be an import path: only the name `tests`
is bound to this folder. `FRAMEGATE_EXPECT` (compiled or pure; the Makefile sets it) says what the hot path must be. With `FRAMEGATE_TESTS=short`
(`make test`) the tests marked `extended` are left out, except in files that the command line names.
"""

import collections
import gc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.fakes.otlp_receiver import OtlpReceiver
    from tests.fakes.outputs import Output
    from tests.fakes.s3 import S3
    from tests.fakes.tls import TlsWorld
    from tests.fakes.upstream import ScriptedUpstream

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FRAMEGATE_PROCESSOR_ENV", "FAKE_PROCESSOR,COVERAGE_PROCESS_START")  # processors get a few variables only, and these
os.environ.setdefault("FRAMEGATE_HANDLER_ENV", "FAKE_HANDLER,FAKE_HANDLER_LIVES,COVERAGE_PROCESS_START")  # handler processes likewise
SPARK_TIMEOUT_S = 240


def bind_tests_package() -> None:
    """Make `tests` a namespace package of this folder alone, whatever else is called so on the import path."""
    spec = importlib.machinery.ModuleSpec("tests", None, is_package=True)
    spec.submodule_search_locations = [str(HERE)]
    sys.modules["tests"] = importlib.util.module_from_spec(spec)


def undo_ignored_signals() -> None:
    """A shell's background job ignores SIGINT, `nohup` SIGHUP, and its children would: with handlers of ours they get the default."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


bind_tests_package()
undo_ignored_signals()


@pytest.fixture(scope="session")
def expected_build() -> str:
    """`compiled` or `pure`: what the hot path's modules must be in this run."""
    build = os.environ.get("FRAMEGATE_EXPECT", "pure")
    assert build in ("compiled", "pure"), f"FRAMEGATE_EXPECT={build}"
    return build


@pytest.fixture(scope="session")
def left_open() -> list[int]:
    """How many descriptors were open behind the last collection."""
    return [0]


@pytest.fixture(autouse=True, scope="module")
def few_descriptors(left_open: list[int]) -> Iterator[None]:
    """What tests have left to the collector is closed before select(), which takes 1,024 descriptors, fails. A collection of all that is loaded takes
    0.4 s, so there is one only when many have been opened since the last one.
    """
    yield
    if len(os.listdir("/proc/self/fd")) > left_open[0] + 200:
        gc.unfreeze()  # the loops of processors and of control freeze what there is when they begin
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no test that runs now left it open
            gc.collect()
        gc.freeze()
        left_open[0] = len(os.listdir("/proc/self/fd"))


@pytest.fixture
def no_umask() -> Iterator[None]:
    """What is restricted in the test is so by our own doing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One Spark session for the whole run: UTC, two partitions."""
    from framegate.proxy.pipeline.session import local_session  # not before the build is known to be the right one

    fast_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with local_session("framegate tests", cores=2, memory="1g", settings=fast_start) as session:
        yield session


@pytest.fixture(scope="session")
def tls_world(tmp_path_factory: pytest.TempPathFactory) -> "TlsWorld":
    """Certificates, made once for all tests."""
    from tests.fakes.tls import TlsWorld

    return TlsWorld.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def upstream() -> "Iterator[ScriptedUpstream]":
    """Sends every frame back."""
    from tests.fakes.upstream import ScriptedUpstream

    with ScriptedUpstream() as started:
        yield started


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> "Iterator[S3]":
    """An S3 server with an empty bucket, for this process and those that it starts."""
    from tests.fakes.s3 import s3_server

    with s3_server(monkeypatch) as made:
        yield made


@pytest.fixture(params=["folder", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> "Output":
    """Of the pipeline: a folder or a URL that is empty."""
    return tmp_path / "out" if request.param == "folder" else f"{request.getfixturevalue('s3').url}/tables"


@pytest.fixture
def receiver() -> "Iterator[OtlpReceiver]":
    """A collector that keeps what comes over OTLP."""
    from tests.fakes.otlp_receiver import OtlpReceiver

    with OtlpReceiver() as made:
        yield made


def pytest_report_header() -> str:
    """Name the build in pytest's first lines."""
    spec = importlib.util.find_spec("framegate.proxy")
    where = Path(spec.origin).parent if spec is not None and spec.origin is not None else "nowhere: install it, or use make test"
    return f"framegate: {os.environ.get('FRAMEGATE_EXPECT', 'pure')} build, proxy from {where}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The test of the build first: if it fails, nothing after it means anything. Tests with Spark get the time that a busy machine takes."""
    if os.environ.get("FRAMEGATE_TESTS") == "short":
        named = {(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args}
        left_out = {item for item in items if item.get_closest_marker("extended") and item.path not in named}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: not _is_first(item.path))
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """No collection looks at the tests themselves, and at what they have loaded."""
    gc.collect()
    gc.freeze()


def _is_first(path: Path) -> bool:
    return path == HERE / "test_build.py"


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines, behind pytest's own: how tests failed that were repeated, and what was not shown because something is missing here."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        for report in reporter.stats.get("rerun", []):
            reporter.write_line(f"framegate: repeated: {report.nodeid}: {report.longreprtext[-2000:]}")
        line = not_shown([skipped_reason(report) for report in reporter.stats.get("skipped", [])])
        if line:
            reporter.write_line(line)


def skipped_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


def not_shown(reasons: list[str]) -> str:
    """One line for all tests that were skipped, by reason; "" when none was."""
    counts = collections.Counter(reasons)
    each = "; ".join(f"{count} {'test' if count == 1 else 'tests'}: {reason}" for reason, count in counts.most_common())
    return f"framegate: not shown: {each}" if each else ""


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """The checkout must not have got compiled files from a test."""
    left: Sequence[Path] = [path for package in ("proxy", "control") for path in (HERE.parent / package).rglob("*.so")]
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f"compiled files in the checkout: {left}\n")
