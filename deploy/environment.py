"""Sets up what a task of the Makefile needs, then runs the task in it.

``python3 deploy/environment.py KIND [--with java,compiler,maven,bench] [-- COMMAND …]``

=======  ==========  =====================================================================================================
kind     where       what
=======  ==========  =====================================================================================================
run      .venv       the wheel, compiled where that is possible, with everything a user wants
test     .venv-test  the same wheel, with the tools of the tests
pure     .venv-pure  the checkout itself (an editable install), interpreted, with the tools of the tests and of lint
=======  ==========  =====================================================================================================

What is there already is left alone: each environment keeps a stamp of what it was made from, and the wheel is built again only when the
sources change. A missing Java, C compiler or Maven is installed when we are root on a machine with apt; else one line says what to
install. Java missing ends here, with exit code 2, before anything starts; a compiler missing is a warning, once. The command runs with
``PYTHONSAFEPATH=1`` (the working directory is never an import path), the environment's programs first on ``PATH``, and
``FRAMEGATE_EXPECT=compiled|pure``: what the hot path's modules must be. Where there is a compiler, ``test`` never goes on without it.

Only the standard library is used here, and no syntax newer than Python 3.8, so that an older Python gets a sentence and not a traceback.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
USER_EXTRAS = "spark,otlp,prometheus,kafka"
KINDS: dict[str, tuple[str, str]] = {
    "run": (".venv", USER_EXTRAS),
    "test": (".venv-test", USER_EXTRAS + ",dev"),
    "pure": (".venv-pure", USER_EXTRAS + ",dev"),
}
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17


def say(text: str) -> None:
    """One line to a person; standard output stays the task's."""
    print("framegate: " + text, file=sys.stderr, flush=True)


def stop(text: str, code: int = 2) -> NoReturn:
    """End here, before anything starts."""
    say(text)
    raise SystemExit(code)


def has_java() -> bool:
    """Whether a Java of 17 or newer answers."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return False
    text = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    version = text.partition('version "')[2].partition('"')[0].split(".")[0].split("-")[0]
    return version.isdigit() and int(version) >= OLDEST_JAVA


def has_compiler() -> bool:
    """Whether C extensions can be built: a compiler, and the header of this very Python."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))


def has_maven() -> bool:
    """Whether Maven is on the path; it fetches the broker's published jars."""
    return shutil.which("mvn") is not None


def has_bench() -> bool:
    """Whether the peers of the bench and OpenSSL's headers (for the load generator) are here."""
    files = ("/usr/lib/nginx/modules/ngx_stream_module.so", "/usr/include/openssl/ssl.h")
    return all(shutil.which(name) for name in ("haproxy", "nginx")) and all(os.path.exists(file) for file in files)


class Need:
    """Something of the machine that a task needs: how to see it, which Debian packages bring it, and whether the task can go on without."""

    def __init__(self, name: str, present: Callable[[], bool], packages: list[str], without: str | None) -> None:
        self.name = name
        self.present = present
        self.packages = packages
        self.without = without


NEEDS = {
    need.name: need
    for need in (
        Need("java", has_java, ["openjdk-17-jre-headless"], None),
        Need("compiler", has_compiler, ["gcc", "libc6-dev", "python3-dev"], "the hot path runs as plain Python, and slower"),
        Need("maven", has_maven, ["maven"], None),
        Need(
            "bench", has_bench, ["haproxy", "nginx", "libnginx-mod-stream", "libssl-dev", "gcc", "libc6-dev"], "peers that are missing are left out"
        ),
    )
}


def provide(need: Need) -> None:
    """Install what is missing, or say in one line what to install."""
    if need.present():
        return
    packages = " ".join(need.packages)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("installing " + packages)
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")  # runlevel 1: a server that is installed is not started
        CACHE.mkdir(exist_ok=True)
        with open(CACHE / "apt.log", "ab") as log:
            subprocess.run(["apt-get", "update", "-q"], env=environment, stdout=log, stderr=log, check=False)
            install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *need.packages]
            subprocess.run(install, env=environment, stdout=log, stderr=log, check=False)
        if need.present():
            return
        say("apt-get could not install it: see .cache/apt.log")
    asked = "{} is missing: install it (on Debian: apt-get install {})".format(need.name if need.name != "java" else "Java 17 or newer", packages)
    if need.without is None:
        stop(asked)
    say(f"warning: {asked}; until then {need.without}")


def digest(paths: list[Path], *words: str) -> str:
    """What an environment or a wheel is made from, in sixteen letters."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for word in words:
        total.update(word.encode() + b"\0")
    return total.hexdigest()[:16]


def wheel_sources() -> list[Path]:
    """Every file that goes into the wheel or decides how it is built."""
    found = [ROOT / name for name in ("pyproject.toml", "deploy/hatch_build.py", "README.md", "LICENSE")]
    for package in ("proxy", "control"):
        found += [
            path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc")
        ]
    return found


def quiet(command: list[str], log: str, hint: str) -> str:
    """Run a command, its words into a log; they are shown when it fails."""
    CACHE.mkdir(exist_ok=True)
    done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    (CACHE / log).write_text(done.stdout)
    if done.returncode != 0:
        sys.stderr.write("\n".join(done.stdout.splitlines()[-30:]) + "\n")
        stop(f"{hint} (the whole output: .cache/{log})", 1)
    return done.stdout


def python_of(environment: Path) -> str:
    """The interpreter of an environment, made on first use."""
    python = environment / "bin" / "python"
    if not python.exists():
        say(f"making {environment.name}")
        if environment.exists():
            shutil.rmtree(str(environment))
        quiet(
            [sys.executable, "-m", "venv", str(environment)],
            "venv.log",
            "python3 -m venv failed: install it (on Debian: apt-get install python3-venv)",
        )
    return str(python)


def build_wheel(python: str) -> Path:
    """The wheel of the sources as they are now."""
    compiler = has_compiler()
    folder = CACHE / "wheels" / digest(wheel_sources(), sys.version, "compiler" if compiler else "none")
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    say("building the wheel" + (" (compiling the hot path: about a minute)" if compiler else ""))
    shutil.rmtree(str(CACHE / "wheels"), ignore_errors=True)
    output = quiet([python, "-m", "pip", "-v", "wheel", "--no-deps", "-w", str(folder), str(ROOT)], "wheel.log", "the wheel could not be built")
    wheel = sorted(folder.glob("*.whl"))[0]
    if is_pure(wheel):
        lines = [line.strip() for line in output.splitlines() if "framegate: not compiled" in line]
        say("warning: " + (lines[0].partition("framegate: ")[2] if lines else "not compiled: this wheel is plain Python, and slower"))
    return wheel


def is_pure(wheel: Path) -> bool:
    """A wheel for every platform holds nothing compiled."""
    return wheel.name.endswith("-none-any.whl")


def set_up(kind: str) -> tuple[Path, str]:
    """Bring one environment up to date; returns it, and what its hot path is: compiled or pure."""
    name, extras = KINDS[kind]
    environment = ROOT / name
    python = python_of(environment)
    stamp = environment / "framegate.stamp"
    before = stamp.read_text().split() if stamp.exists() else ["", "", ""]
    requirements = digest([ROOT / "pyproject.toml"], sys.version, extras)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    if kind == "pure":
        source, build, content = "-e", "pure", digest([ROOT / "proxy" / "pipeline" / "pyspark_framegate.py", ROOT / "deploy" / "hatch_build.py"])
        target = [source, f"{ROOT}[{extras}]"]
        again = [source, str(ROOT)]
    else:
        if kind == "test" and has_compiler():
            os.environ["FRAMEGATE_REQUIRE_COMPILED"] = "1"
        wheel = build_wheel(python)
        build, content = ("pure" if is_pure(wheel) else "compiled"), wheel.parent.name
        if build == "pure" and os.environ.get("FRAMEGATE_REQUIRE_COMPILED") == "1":
            stop("the wheel is plain Python, though there is a compiler: .cache/wheel.log says why", 1)
        target = [f"{wheel}[{extras}]"]
        again = [str(wheel)]
    if before[:2] != [requirements, content]:
        stamp.unlink() if stamp.exists() else None
        if before[0] != requirements:
            say(f"installing into {name} (a few minutes the first time)")
            quiet([*pip, *target], f"install-{kind}.log", "the installation failed")
        quiet([*pip, "--force-reinstall", "--no-deps", *again], f"install-{kind}.log", "the installation failed")
        stamp.write_text(f"{requirements} {content} {build}\n")
    return environment, build


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two tasks started at once must not set up the same environment."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "environment.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def become(command: list[str], environment: Path, build: str) -> NoReturn:
    """Replace this process by the command, run in the environment."""
    variables = dict(os.environ, PYTHONSAFEPATH="1", FRAMEGATE_EXPECT=build, VIRTUAL_ENV=str(environment))
    variables["PATH"] = str(environment / "bin") + os.pathsep + variables.get("PATH", os.defpath)
    variables.pop("PYTHONPATH", None)
    os.chdir(str(ROOT))
    os.execvpe(command[0], command, variables)


def main(arguments: list[str]) -> int:
    """Set up, then become the command."""
    if sys.version_info < OLDEST_PYTHON:
        stop("Python {}.{} or newer is needed; this is {}".format(*OLDEST_PYTHON, sys.version.split()[0]))
    split = arguments.index("--") if "--" in arguments else len(arguments)
    words, command = arguments[:split], arguments[split + 1 :]
    if not words or words[0] not in KINDS or (len(words) > 1 and (len(words) != 3 or words[1] != "--with")):
        stop(__doc__ or "")
    wanted = words[2].split(",") if len(words) == 3 else []
    with one_at_a_time():
        for name in wanted:
            provide(NEEDS[name])
        environment, build = set_up(words[0])
    if command:
        become(command, environment, build)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
