"""Build framegate's container images with podman, check them, and try them.

``python3 deploy/image.py [--target framegate|spark|all] [--archive DIR] [--twice] [--base IMAGE] [--fresh] [--mirror URL]
[--key FILE]`` (``make image ARGS="…"``)

If there is no podman, it is installed (as root). The base image is the one that
``deploy/Containerfile`` names, if a registry can be reached; otherwise mmdebstrap makes one from Debian's packages, once (``--fresh``: again;
``--mirror``: from another mirror). The build uses this machine's settings of pip (index, certificate), and the image has no trace of them. Unchanged
steps are not built again.

Then each image is checked against the rules of ``image_archive.py`` (user, folders, no shell, size, times, nothing of this machine) and tried in a
container (``image_trial.py``), and its sizes and digest are printed. Its archive, in OCI's layout, and its bill of materials are in ``.cache/image``;
``--archive`` copies both. With ``--key``, a private key in PEM, each copy has its signature beside it, ``FILE.sig`` (of SHA-256, in base64, as
``cosign verify-blob`` and ``openssl dgst -verify`` expect it). ``--twice`` builds again without cached steps and compares the two images, file by
file if they differ.

Exit codes: 1 a step failed or a rule is broken, 2 something is missing on this machine, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import environment
import image_archive
import image_trial
from image_engine import Engine, Order

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES = {"framegate": "localhost/framegate", "spark": "localhost/framegate-spark"}
CONTAINERFILE = environment.ROOT / "deploy" / "Containerfile"
FOLDER = environment.CACHE / "image"
MADE_BASE = "localhost/framegate-base:trixie"
BASE_CONTAINERFILE = 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n'
NO_TRACES = 'rm -f "$1/etc/resolv.conf" "$1/etc/hostname"'  # mmdebstrap copies these files from this machine
EPOCH = 1767225600  # 2026-01-01: the same for every build, so that a cached step equals a new one
PULL_S = 60
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")


def epoch() -> int:
    """The time of all files in an image, seconds since 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))


def version() -> str:
    """The version of framegate."""
    return str(tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]["version"])


def said(command: list[str]) -> str:
    """The output of a short command, also if it fails."""
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout


def revision() -> str:
    """The commit of the checkout, with ``-modified`` if files differ from it; ``unknown`` where there is no Git."""
    if not shutil.which("git"):
        return "unknown"
    git = ["git", "-C", str(environment.ROOT)]
    head, changes = (said([*git, *words]).strip() for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")))
    return (head or "unknown") + ("-modified" if head and changes else "")


def default_base(text: str) -> str:
    """The base image that a Containerfile names."""
    return next(line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("ARG BASE="))


def pip_settings(output: str) -> dict[str, str]:
    """The settings of pip for a package index, from the output of ``pip config list``; those of the environment override files."""
    found: dict[str, str] = {}
    for line in sorted(output.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in PIP_SETTINGS or key == "cert":
            found[key] = str(ast.literal_eval(value))
    return found


@contextlib.contextmanager
def secrets() -> Iterator[tuple[dict[str, Path], list[bytes]]]:
    """This machine's settings of pip as secret files of a build, which are removed afterwards; and the words of them that no image may contain."""
    if importlib.util.find_spec("pip") is None:
        environment.say("warning: this Python has no pip: the images are built with pip's defaults, not with this machine's settings of pip")
    settings = pip_settings(said([sys.executable, "-m", "pip", "config", "list"]))
    words = [str(environment.ROOT).encode()]
    words += [name.encode() for key in ("index-url", "extra-index-url") for url in settings.get(key, "").split() if (name := urlsplit(url).hostname)]
    folder = FOLDER / "secrets"
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield write_secrets(folder, settings), words
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


def write_secrets(folder: Path, settings: dict[str, str]) -> dict[str, Path]:
    """Write settings of pip into files; returns them by their names in ``deploy/Containerfile``."""
    files: dict[str, Path] = {}
    lines = [f"{key} = {value}".replace("\n", "\n  ") for key, value in sorted(settings.items()) if key != "cert"]
    if "cert" in settings:
        files["ca.crt"] = folder / "ca.crt"
        shutil.copyfile(settings["cert"], files["ca.crt"])
        lines.append("cert = /run/secrets/ca.crt")
    if lines:
        files["pip.conf"] = folder / "pip.conf"
        files["pip.conf"].write_text("[global]\n" + "\n".join(lines) + "\n")
    return files


MMDEBSTRAP = environment.Need("mmdebstrap", "mmdebstrap, for a base without a registry,", lambda: environment.on_path("mmdebstrap"), ["mmdebstrap"])


def find_base(engine: Engine, asked: str, mirror: str, *, fresh: bool) -> str:
    """The base image: the requested one, the Containerfile's, or one made from packages."""
    if asked:
        return asked
    public = default_base(CONTAINERFILE.read_text())
    if not mirror and engine.has(public) and not fresh:
        return public
    if engine.has(MADE_BASE) and not fresh:
        return MADE_BASE
    if not mirror and fetched(engine, public):
        return public
    return make_base(engine, mirror)


def fetched(engine: Engine, image: str) -> bool:
    """Whether an image could be fetched from its registry within a minute."""
    command = ["timeout", str(PULL_S), *engine.pull_command(image)]
    return environment.run_logged(command, "image-pull.log", f"fetching {image}") == 0


def make_base(engine: Engine, mirror: str) -> str:
    """Make an image of Debian 13 from its packages."""
    environment.say("no registry can be reached (.cache/image-pull.log): the base is made from Debian's packages")
    environment.provide([(MMDEBSTRAP, False)])
    folder = FOLDER / "base"
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        variables = dict(os.environ, SOURCE_DATE_EPOCH=str(epoch()))
        command = ["mmdebstrap", "--variant=apt", f"--customize-hook={NO_TRACES}", "trixie", str(folder / "base.tar"), *([mirror] if mirror else [])]
        environment.run_or_stop(command, "image-base.log", "making a Debian 13", "no base could be made from Debian's packages", variables=variables)
        (folder / "Containerfile").write_text(BASE_CONTAINERFILE)
        order = Order("", MADE_BASE, {}, {}, epoch(), fresh=True)
        command = engine.build_command(order, folder / "Containerfile", folder)
        environment.run_or_stop(command, "image-base-build.log", "making it an image", "the base could not be made an image")
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)
    return MADE_BASE


def build(engine: Engine, order: Order) -> None:
    """Build one image."""
    log = f"image-{order.target}.log"
    what = f"building {order.image}" + (" again, from nothing" if order.fresh else "")
    environment.run_or_stop(engine.build_command(order, CONTAINERFILE, environment.ROOT), log, what, f"{order.image} could not be built")


def archived(engine: Engine, image: str, target: str, words: list[bytes]) -> tuple[Path, image_archive.Image]:
    """The archive of an image, and its contents; written only if the image has changed."""
    archive, known = FOLDER / f"{image.rpartition('/')[2].replace(':', '-')}.tar", FOLDER / f"{target}.id"
    current = engine.image_id(image)
    if not (archive.exists() and known.exists() and known.read_text() == current):
        known.unlink(missing_ok=True)
        archive.unlink(missing_ok=True)
        environment.run_or_stop(engine.save_command(image, archive), f"image-save-{target}.log", f"saving {image}", f"{image} could not be saved")
        known.write_text(current)
    try:
        found = image_archive.read(archive, words)
    except ValueError as error:
        known.unlink(missing_ok=True)
        environment.stop(str(error), 1)
    archive.with_suffix(".cdx.json").write_bytes(found.sbom)
    return archive, found


def built_twice(engine: Engine, order: Order, first: image_archive.Image, words: list[bytes]) -> None:
    """Build again without cached steps; stop if the second image differs from the first."""
    again = replace(order, image=f"{order.image}-again", fresh=True)
    build(engine, again)
    try:
        archive, second = archived(engine, again.image, f"{order.target}-again", words)
        if second.digest != first.digest:
            differing = image_archive.differences(first, second)
            shown = "\n".join(["", *(f"  /{name}" for name in differing[:20])])
            environment.stop(
                f"{order.image}: two builds are two images: {first.digest} and {second.digest}; {len(differing)} paths differ:{shown}", 1
            )
    finally:
        engine.remove(again.image)
    archive.unlink()
    archive.with_suffix(".cdx.json").unlink()


def checked(engine: Engine, order: Order, image: image_archive.Image, words: list[bytes], *, twice: bool) -> list[str]:
    """Check an image and try it; returns the lines to print."""
    broken = list(image_archive.faults(image, order.target, order.epoch))
    if broken:
        environment.stop(f"{order.image} breaks {len(broken)} rules:\n" + "\n".join(f"  {rule}" for rule in broken[:20]), 1)
    lines = [
        f"image       {order.image}",
        f"digest      {image.digest}",
        f"size        {image.size / image_archive.MIB:.1f} MiB unpacked, {image.compressed / image_archive.MIB:.1f} MiB compressed",
    ]
    if twice:
        built_twice(engine, order, image, words)
        lines.append("built twice the same digest")
    trial = image_trial.try_sidecar if order.target == "framegate" else image_trial.try_spark
    try:
        seen = trial(engine, order.image, order.arguments["VERSION"])
    except image_trial.TrialError as error:
        environment.stop(f"{order.image} was built, and does not work: {error}", 1)
    result = "a frame through a container and back" if order.target == "framegate" else "framegate and spark-submit answered"
    return [*lines, f"tried       {seen.version}; {result}, {seen.seconds:.2f} s after podman was asked"]


def options(arguments: list[str]) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="image.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=[*IMAGES, "all"], default="framegate", help="which image (default: %(default)s)")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="where to copy each image's archive and bill of materials")
    parser.add_argument("--key", type=Path, metavar="FILE", help="a private key in PEM, which signs what --archive copies")
    parser.add_argument("--twice", action="store_true", help="build again from nothing, and compare")
    parser.add_argument("--base", default="", metavar="IMAGE", help="a Debian 13 to build on, instead of the public one or one made here")
    parser.add_argument("--fresh", action="store_true", help="fetch or make the base again: newer packages of Debian")
    parser.add_argument("--mirror", default="", metavar="URL", help="of Debian, where a base is made here")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Build the images, check them, try them, and print the results."""
    asked = options(arguments)
    if asked.key and not (asked.archive and asked.key.is_file()):
        environment.stop("--key signs what --archive copies, with a private key in a file")
    started = time.monotonic()
    with environment.one_at_a_time():
        FOLDER.mkdir(exist_ok=True)
        engine = Engine()
        base = find_base(engine, asked.base, asked.mirror, fresh=asked.fresh)
        lines = [f"base        {base}"]
        with secrets() as (files, words):
            for target in IMAGES if asked.target == "all" else [asked.target]:
                names = {"BASE": base, "VERSION": version(), "REVISION": revision()}
                order = Order(target, f"{IMAGES[target]}:{version()}", names, files, epoch())
                build(engine, order)
                archive, image = archived(engine, order.image, target, words)
                lines += [*checked(engine, order, image, words, twice=asked.twice), f"archive     {keep(archive, asked.archive, asked.key)}"]
    print("\n".join([*lines, f"time        {time.monotonic() - started:.0f} s"]))
    return 0


def keep(archive: Path, folder: Path | None, key: Path | None) -> Path:
    """Copy an archive and its bill of materials into a folder, if there is one, and sign both, if there is a key; returns the archive's place."""
    if folder is None:
        return archive.relative_to(environment.ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (archive, archive.with_suffix(".cdx.json")):
        shutil.copyfile(path, folder / path.name)
        if key is not None:
            sign(folder / path.name, key)
    return folder / archive.name


def sign(path: Path, key: Path) -> None:
    """Write the signature of a file beside it."""
    target = path.with_name(path.name + ".sig")
    command = ["openssl", "dgst", "-sha256", "-sign", str(key), "-out", str(target), str(path)]
    environment.run_or_stop(command, "image-sign.log", f"signing {path.name}", f"{path.name} could not be signed")
    target.write_bytes(base64.b64encode(target.read_bytes()) + b"\n")


if __name__ == "__main__":
    raise SystemExit(environment.guarded(sys.argv[1:], main))
