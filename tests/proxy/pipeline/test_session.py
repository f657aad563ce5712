import importlib.util
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from framegate.proxy.pipeline import session
from framegate.proxy.pipeline.session import (
    SparkLog,
    SparkMissingError,
    _home,
    _stdout_as_stderr,
    local_session,
    open_private,
    require_java,
    require_packages,
    restricted,
)
from tests.fakes.cases import each_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(folder: Path, version: str) -> None:
    """A JAVA_HOME whose java says its version."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)


def test_a_java_is_found_where_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java(tmp_path, "17.0.15")
    assert require_java() == str(tmp_path / "bin" / "java")
    java(tmp_path, "11.0.2")
    with pytest.raises(SparkMissingError, match="found Java 11"):
        require_java()


def test_no_java_is_one_line_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissingError, match=r"^Spark needs Java 17, none found: install .*JAVA_HOME$"):
        require_java()
    with pytest.raises(SparkMissingError), local_session("never"):
        pass


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else object())
    with pytest.raises(SparkMissingError, match=r"not installed: pyarrow: pip install 'framegate\[spark\]'"):
        require_packages()


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PRIVATE", str(tmp_path / "spark-"))
    dead, alive, other = (tmp_path / name for name in ("spark-999999999-x", f"spark-{os.getpid()}-x", "else-999999999-x"))
    for folder in (dead, alive, other):
        folder.mkdir()
    fresh = Path(session._private_folder())
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, other.name, fresh.name}
    assert fresh.name.startswith(f"spark-{os.getpid()}-")


def test_what_java_prints_can_go_to_a_file_and_its_reason_is_found(capfd: pytest.CaptureFixture[str]) -> None:
    with SparkLog() as log:
        assert (log.tail(), log.reason()) == ("", "")
        with _stdout_as_stderr(log.fd):
            subprocess.run(["sh", "-c", "echo from a child; echo java.lang.OutOfMemoryError: Java heap space >&2"], check=True)
        logging.getLogger("py4j.clientserver").error("from a thread")
        assert log.tail().splitlines() == ["from a child", "java.lang.OutOfMemoryError: Java heap space", "from a thread"]
        assert log.reason() == "java.lang.OutOfMemoryError: Java heap space: more --memory, fewer --cores or a smaller --payload"
        log.trim()
        assert log.tail(), "what is small stays"
        os.ftruncate(log.fd, session.LOG_BYTES + 1)
        assert len(log.tail()) == session.TAIL_BYTES + 1
        log.trim()
        assert log.tail() == ""
        with _stdout_as_stderr(log.fd):
            subprocess.run(["echo", "again"], check=True)
        assert log.tail() == "again\n"
    assert logging.getLogger("py4j").propagate
    assert capfd.readouterr() == ("", "")


def test_what_java_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with _stdout_as_stderr():
        subprocess.run(["echo", "from a child"], check=True)
    subprocess.run(["echo", "afterwards"], check=True)
    assert capfd.readouterr() == ("afterwards\n", "from a child\n")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_the_session_has_the_settings_that_a_python_source_wants(spark: "SparkSession") -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    manager = str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass"))
    assert spark._jvm is not None
    assert spark._jvm.java.lang.Class.forName(manager).getName() == manager
    context = spark.sparkContext.getConf()
    assert context.get("spark.python.unix.domain.socket.enabled") == "true"
    sockets = context.get("spark.python.unix.domain.socket.dir")
    assert sockets is not None
    assert len(sockets) < 60
    assert os.stat(sockets).st_mode & 0o077 == 0
    assert context.get("spark.ui.enabled") == "false"
    assert not Path("spark-warehouse").exists()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_sparks_python_processes_import_what_is_installed_and_not_a_zip(spark: "SparkSession") -> None:
    def places(rows: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyspark

        yield from (pa.RecordBatch.from_pydict({"place": [pyspark.__file__]}) for _ in rows)

    assert "SPARK_HOME" not in os.environ
    assert [row.place for row in spark.range(0, 1, 1, 1).mapInArrow(places, "place string").collect()] == [pyspark.__file__]


def test_a_home_without_zips_is_for_the_start_of_the_jvm_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with _home(tmp_path, {}):
        home = Path(os.environ["SPARK_HOME"])
        assert (home / "jars").is_dir()
        assert (home / "bin" / "spark-submit").is_file()
        assert not list(home.glob("python"))
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("variables", "settings"),
    [({"SPARK_HOME": "/opt/spark"}, {}), ({"PYSPARK_PYTHON": "/another/python"}, {}), ({}, {"spark.pyspark.python": "/another/python"})],
)
def test_who_names_a_home_or_another_python_gets_what_spark_does(
    variables: dict[str, str], settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for name, value in {"PYSPARK_PYTHON": sys.executable, **variables}.items():
        monkeypatch.setenv(name, value)
    with _home(tmp_path, settings):
        assert os.environ.get("SPARK_HOME") == variables.get("SPARK_HOME")
    assert os.environ.get("SPARK_HOME") == variables.get("SPARK_HOME")
    assert list(tmp_path.iterdir()) == []


@each_of(("umask", "wanted"), [(0, "027"), (0o022, "027"), (0o077, "077")])
def test_what_is_started_for_spark_keeps_others_out_and_a_stricter_umask_stays(umask: int, wanted: str) -> None:
    before = os.umask(umask)
    try:
        with restricted() as told:
            inherited = subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout.strip()
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (told, int(inherited, 8)) == (wanted, int(wanted, 8))


def test_files_of_ours_are_for_owner_and_group(tmp_path: Path, no_umask: None) -> None:
    for text in ("longer", "short"):
        with open_private(tmp_path / "file") as file:
            file.write(text)
    assert (tmp_path / "file").read_text() == "short"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
