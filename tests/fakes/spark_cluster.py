"""A standalone Spark cluster, one master and two workers, from the classes in the package pyspark; and a job in it that writes the tables."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from tests.fakes.framegate import child_pids
from tests.fakes.jobs import environment
from tests.fakes.waiting import until

# Standard input: the settings of Spark, the trigger, and whether, once everything is read, standard output gets what Spark reads in the tables: node
# and CRC of the body of each frame, and how often it is there.
JOB: Final = """
import contextlib, json, sys
from pyspark.sql import SparkSession
from framegate.proxy.pipeline.pyspark_framegate import read_table, register
from framegate.proxy.pipeline.tables import TableWriter
master, url, output, state = sys.argv[1:]
settings, trigger, counted = json.loads(sys.stdin.readline())
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
register(spark)
options = {"parallelism": "6", "maxPartitionBytes": "1m", "output": output}
stream = spark.readStream.format("framegate").options(**options).load(url)
with contextlib.closing(TableWriter(output, source=url)) as writer:
    query = stream.writeStream.foreachBatch(writer).option("checkpointLocation", state).trigger(**trigger).start()
    query.awaitTermination()
if counted:
    rows = read_table(spark, output, "frames").selectExpr("node", "crc32(payload) AS crc").groupBy("node", "crc").count()
    print(json.dumps([list(row) for row in rows.collect()]))
spark.stop()
"""
JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextlib.contextmanager
def standalone(folder: Path, hidden: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """The URL of the master, and the workers; as root, these do not see the folder ``hidden``. Executors are started again however often they end."""
    import pyspark

    home = Path(pyspark.__file__).parent
    java = ["java", *JVM, "-Xmx256m", "-cp", f"{home}/jars/*"]
    told = {**environment(), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)] if os.geteuid() == 0 else []
    made: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> Path:
        place = folder / name
        place.mkdir()
        with (place / "log").open("wb") as log:
            made.append(subprocess.Popen(command, cwd=place, env=told, stdout=log, stderr=log, start_new_session=True))
        return place / "log"

    master = ["-Dspark.deploy.maxExecutorRetries=-1", "org.apache.spark.deploy.master.Master"]
    worker = "org.apache.spark.deploy.worker.Worker"
    try:
        log = start("master", *java, *master, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        line = until(lambda: next((line for line in log.read_text().splitlines() if "Starting Spark master at" in line), ""), "no master", 60)
        url = line.split("Starting Spark master at ")[1].split()[0]
        for number in range(2):
            place = folder / f"worker-{number}"
            more = ["--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0", "--work-dir", str(place / "work"), url]
            start(place.name, *hide, *java, worker, *more)
        yield url, made[1:]
    finally:
        for process in reversed(made):
            kill_group(process)


def kill_group(process: "subprocess.Popen[Any]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def busy(workers: list["subprocess.Popen[bytes]"]) -> list[int]:
    """The executors whose Python processes run."""
    found = [executor for worker in workers for executor in child_pids(worker.pid)]
    return [executor for executor in found if any(child_pids(daemon) for daemon in child_pids(executor))]


@contextlib.contextmanager
def cluster_job(
    master: str, url: str, output: str, state: Path, errors: IO[str] | int = subprocess.PIPE, *, counted: bool = False, **trigger: Any
) -> Iterator["subprocess.Popen[str]"]:
    """``JOB`` as a process group of its own, which is killed behind the block."""
    settings = {
        "spark.executor.memory": "500m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": environment()["PYTHONPATH"],
        "spark.python.unix.domain.socket.enabled": "false",
        "spark.driver.extraJavaOptions": " ".join(JVM),
        "spark.executor.extraJavaOptions": " ".join(JVM),
    }
    told = {**environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", JOB, master, url, output, str(state)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=told, stdin=pipe, stdout=pipe, stderr=errors, text=True, start_new_session=True) as job:
        try:
            assert job.stdin is not None
            job.stdin.write(json.dumps([settings, trigger, counted]) + "\n")
            job.stdin.flush()
            yield job
        finally:
            kill_group(job)
