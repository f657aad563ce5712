"""Set up the environment that a task of the Makefile needs, then run the task in it.

``python3 deploy/environment.py KIND [--with java] [--wish compiler,openssl,maven,mariadb,peers,clients,browser] [-- COMMAND …]``

====  ==============  ================================================================================================
kind  folder          contents
====  ==============  ================================================================================================
run   .venv           the wheel, compiled if possible, with all extras for users
test  .venv-dev-3.x   the same wheel, with the tools of the tests; one environment for each Python version
pure  .venv-dev-3.x   the same environment; ``.src``, the checkout's source, is before the wheel on the import path
====  ==============  ================================================================================================

uv creates and fills the environments; pip does if uv is not available. A stamp file in each environment says what it was made from, so an environment
that is up to date is not touched. The wheel is built again only when its sources change, and compiled only when the compiled modules change.

``--with`` names what the task needs of the machine, ``--wish`` what it can do without. What is missing is installed if this runs as root on a machine
with apt. Otherwise one line says what to install; without something needed the task does not start, without something optional the line says what the
task leaves out. Where there is a compiler, ``test`` fails if the wheel is not compiled.

The command runs with ``PYTHONSAFEPATH=1`` (the working directory is not on the import path), the environment's programs first on ``PATH`` (the former
value is in ``FRAMEGATE_USER_PATH``), and ``FRAMEGATE_EXPECT=compiled|pure``, which says what the modules of the hot path must be. Bytecode is kept in
``.cache/pycache``, whatever PYTHONDONTWRITEBYTECODE says: without it each of the many processes that tests start compiles half a thousand modules.

Each step shows how long it has taken. Ctrl-C and SIGTERM end the running step; the next call continues from there.

Exit codes: 1 a step failed, 2 something is missing or wrong on this machine, 130 Ctrl-C, 143 SIGTERM; otherwise that of the command.

This file uses the standard library only, and no syntax newer than Python 3.8, so that an older Python prints a message instead of a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
USER_EXTRAS = "spark,otlp,prometheus,kafka,ship"
KINDS = {"run": (".venv", USER_EXTRAS), "test": (".venv-dev-{}.{}", USER_EXTRAS + ",dev"), "pure": (".venv-dev-{}.{}", USER_EXTRAS + ",dev")}
"""The folder and the extras of each kind of environment."""
USUAL = {"compiling and building the wheel": "1 to 5 minutes", "installing what framegate needs": "about 60 s"}
"""Durations of long steps; those of compiling depend on the machine."""
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
PYTHON = "{}-{}.{}.{}".format(sys.implementation.name, *sys.version_info)
COMPILED = "compiled-" + PYTHON  # the folder of the cache in which the build hook keeps what it compiled
LINE_EVERY_S = 10
GRACE_S = 10


class StoppedError(Exception):
    """SIGINT or SIGTERM was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def say(text: str) -> None:
    """Print one line to stderr; stdout belongs to the task."""
    print("framegate: " + text, file=sys.stderr, flush=True)


def stop(text: str, code: int = 2) -> NoReturn:
    """Print one line and exit."""
    say(text)
    raise SystemExit(code)


# --- what a machine has ------------------------------------------------------------------------------------------------------------------


@dataclass
class Need:
    """Something that tasks need of the machine.

    Args:
        name: in ``--with`` and ``--wish``.
        title: in messages.
        present: whether the machine has it.
        packages: Debian packages that have it.
        without: what is left out as long as an optional need is missing.
        alternatives: packages for a release of Debian that does not have the others.
    """

    name: str
    title: str
    present: Callable[[], bool]
    packages: list[str]
    without: str = ""
    alternatives: list[str] = field(default_factory=list)


def on_path(*programs: str) -> bool:
    """Whether all these programs are on PATH, or where Debian has servers."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
    return all(shutil.which(program, path=path) for program in programs)


def has_venv() -> bool:
    """Whether this Python can create environments with pip; Debian has that in a separate package."""
    return all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip"))


def has_java() -> bool:
    """Whether there is a Java of a version that Spark supports."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return False
    text = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    version = text.partition('version "')[2].partition('"')[0].split(".")[0].split("-")[0]
    return version.isdigit() and int(version) >= OLDEST_JAVA


def has_compiler() -> bool:
    """Whether C extensions can be built: a compiler, and the headers of this Python."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))


def has_peers() -> bool:
    """Whether there are the proxies that the bench compares with."""
    return on_path("haproxy", "nginx") and os.path.exists("/usr/lib/nginx/modules/ngx_stream_module.so")


VENV = Need("venv", "venv of this Python", has_venv, ["python3-venv"], "", ["python{}.{}-venv".format(*sys.version_info)])
_JAVA = Need("java", f"Java {OLDEST_JAVA} or newer", has_java, ["openjdk-17-jre-headless"], "there is no Spark", ["openjdk-21-jre-headless"])
_COMPILER = Need("compiler", "a C compiler with the headers of this Python", has_compiler, ["gcc", "libc6-dev", "python3-dev"])
_COMPILER.without = "the hot path runs as plain Python, and slower"
_MAVEN = Need("maven", "Maven", lambda: on_path("mvn"), ["maven"], "tests with a real Kafka broker are skipped")
_MARIADB = Need("mariadb", "MariaDB with its client", lambda: on_path("mariadbd", "mariadb"), ["mariadb-server-core", "mariadb-client-core"])
_MARIADB.without = "tests with a real MariaDB are skipped"
_OPENSSL = Need("openssl", "OpenSSL with its headers", lambda: os.path.exists("/usr/include/openssl/ssl.h"), ["libssl-dev"])
_OPENSSL.without = "the bench's load generator, and its tests, are left out"
_BROWSER = Need("browser", "Chromium", lambda: on_path("chromium"), ["chromium"], "dashboards are not drawn")
_CLIENTS = Need("clients", "kcat or OpenSSL's command", lambda: on_path("kcat", "openssl"), ["kcat", "openssl"])
_CLIENTS.without = "what they do through framegate is not shown"
_PEERS = Need("peers", "HAProxy or NGINX", has_peers, ["haproxy", "nginx", "libnginx-mod-stream"], "peers that are missing are left out")
NEEDS = {need.name: need for need in (_JAVA, _COMPILER, _MAVEN, _MARIADB, _OPENSSL, _BROWSER, _CLIENTS, _PEERS)}


def provide(wanted: Sequence[tuple[Need, bool]]) -> None:
    """Install what is missing, or say in one line what to install.

    Args:
        wanted: the needs of a task, each with whether it is optional.
    """
    missing = [(need, optional) for need, optional in wanted if not need.present()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        update_package_lists()
        install([package for need, _ in missing for package in need.packages])
        # apt installs nothing if one of the packages does not exist: then each need is installed alone
        for need, _ in missing:
            for packages in (need.packages, need.alternatives):
                if packages and not need.present():
                    install(packages)
        missing = [(need, optional) for need, optional in missing if not need.present()]
        if missing:
            say("apt-get could not install everything: see .cache/apt.log")
    if not missing:
        return
    titles = [need.title for need, _ in missing]
    names = " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))
    packages = list(dict.fromkeys(package for need, _ in missing for package in need.packages))
    verb, pronoun = ("are", "them") if titles[1:] else ("is", "it")
    advice = f"{names} {verb} missing: install {pronoun} (on Debian: apt-get install {' '.join(packages)})"
    if not all(optional for _, optional in missing):
        stop(advice)
    say(f"warning: {advice}; until then " + "; ".join(need.without for need, _ in missing))


@functools.lru_cache(1)  # functools.cache is newer than Python 3.8
def update_package_lists() -> None:
    """Run ``apt-get update``, once."""
    run_logged(["apt-get", "update", "-q"], "apt-update.log", "reading apt's lists", apt_variables())


def install(packages: list[str]) -> None:
    """Install Debian packages."""
    command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages]
    run_logged(command, "apt.log", "installing " + " ".join(packages), apt_variables())


def apt_variables() -> dict[str, str]:
    """Variables for apt: no questions, and in runlevel 1 installed servers are not started."""
    return dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")


# --- steps with a clock ------------------------------------------------------------------------------------------------------------------


def wait_with_clock(ready: Callable[[float], bool], text: str, hint: str = "", progress: Callable[[], str] = str) -> None:
    """Wait until something is ready, and show the seconds: in one moving line on a terminal, otherwise in a line every ten seconds.

    Args:
        ready: waits at most the given number of seconds; returns whether it is ready.
        text: the step.
        hint: an addition to the first line.
        progress: returns an addition to the number of seconds.
    """
    moving = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    started, lines = time.monotonic(), 0
    sys.stderr.write(f"framegate: {text}{hint}" + ("" if moving else "\n"))
    sys.stderr.flush()
    try:
        while not ready(1.0):
            passed = int(time.monotonic() - started)
            if moving:
                sys.stderr.write(f"\rframegate: {text}{hint}, {passed} s{progress()}")
                sys.stderr.flush()
            elif passed // LINE_EVERY_S > lines:
                lines = passed // LINE_EVERY_S
                say(f"still {text}, {passed} s{progress()}")
    finally:
        if moving:
            sys.stderr.write("\n")


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends in that time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and everything that it started: first with SIGINT, so that it can clean up, then with SIGKILL."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
            ends_within(process, GRACE_S)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_logged(command: list[str], log: str, text: str, variables: dict[str, str] | None = None, progress: Callable[[], str] = str) -> int:
    """Run a command with its output in a log of the cache, and its temporary files in a folder that is removed; returns its exit code."""
    hint = f" ({USUAL[text]})" if text in USUAL else ""
    temporary = CACHE / "tmp"
    shutil.rmtree(str(temporary), ignore_errors=True)  # of a call that was killed
    temporary.mkdir(parents=True)
    variables = dict(os.environ if variables is None else variables, TMPDIR=str(temporary))
    try:
        with open(CACHE / log, "wb") as file:
            process = subprocess.Popen(
                command, cwd=str(ROOT), env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
            try:
                wait_with_clock(lambda seconds: ends_within(process, seconds), text, hint, progress)
            except BaseException:
                end_session(process)
                raise
        return process.returncode
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def run_or_stop(
    command: list[str], log: str, text: str, failed: str, progress: Callable[[], str] = str, variables: dict[str, str] | None = None
) -> str:
    """Run a command and return its output; if it fails, print the end of the output and exit."""
    code = run_logged(command, log, text, variables, progress)
    output = (CACHE / log).read_text(errors="replace")
    if code != 0:
        sys.stderr.write("\n".join(output.splitlines()[-30:]) + "\n")
        stop(f"{failed} (the whole output: .cache/{log})", 1)
    return output


@contextlib.contextmanager
def locked(path: Path, text: str) -> Iterator[None]:
    """Hold a lock file; ``text`` is shown while another process holds it."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "w") as lock:

        def taken(seconds: float) -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(seconds)
                return False
            return True

        if not taken(0):
            wait_with_clock(taken, text)
        yield


def one_at_a_time() -> contextlib.AbstractContextManager[None]:
    """Let only one task at a time set up environments."""
    return locked(CACHE / "environment.lock", "waiting for another task that sets up")


# --- environments and the wheel ----------------------------------------------------------------------------------------------------------


def uv() -> str:
    """The path of uv: from ``PATH``, or installed by pip into the cache; empty: it cannot be installed."""
    found, ours = shutil.which("uv"), CACHE / "uv" / "bin" / "uv"
    if found is None and not ours.exists():
        make_environment(CACHE / "uv")
        run_logged([str(CACHE / "uv" / "bin" / "python"), "-m", "pip", "install", "-q", "uv"], "uv.log", "installing uv")
    return found or (str(ours) if ours.exists() else "")


def uv_variables() -> dict[str, str]:
    """The environment of uv: its cache is in ours."""
    return dict(os.environ, UV_CACHE_DIR=str(CACHE / "uv-cache"))


def make_environment(environment: Path, tool: str = "") -> None:
    """Create an environment of this Python, in place of an existing one: by uv (``tool``), or by venv with pip in it."""
    shutil.rmtree(str(environment), ignore_errors=True)
    command = [tool, "venv", "-q", "--python", sys.executable] if tool else [sys.executable, "-m", "venv"]
    run_or_stop([*command, str(environment)], "venv.log", f"making {environment.name}", "the environment could not be made")


def run_installer(python: str, by_uv: list[str], by_pip: list[str], log: str, text: str) -> str:
    """Install something for a Python, or build it, and return the output: by uv, or by pip, which knows settings that uv does not. Each has a log."""
    tool = uv()
    if tool:
        if run_logged([tool, *by_uv, "--python", python], log, text, uv_variables(), compiled_so_far) == 0:
            return (CACHE / log).read_text(errors="replace")
        lines = (CACHE / log).read_text(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "without a message")
        say(f"uv failed: {reason}; using pip instead (.cache/{log})")
        log = log.replace(".log", "-pip.log")
    if not os.path.exists(os.path.join(os.path.dirname(python), "pip")):
        run_or_stop([python, "-m", "ensurepip"], "venv.log", "adding pip", "pip could not be added")
    return run_or_stop([python, "-m", "pip", "--disable-pip-version-check", *by_pip], log, text, f"{text} failed", compiled_so_far)


def compiled_so_far() -> str:
    """How many C files of a running build are compiled."""
    build = CACHE / COMPILED / "build"
    files, done = len(list(build.rglob("*.c"))), len(list(build.rglob("*.o")))
    return f", {done} of {files} files compiled" if 0 < done < files else ""


def digest(paths: list[Path], *words: str) -> str:
    """Sixteen characters that depend on the files and the words."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for word in words:
        total.update(word.encode() + b"\0")
    return total.hexdigest()[:16]


def wheel_sources() -> list[Path]:
    """Every file that is in the wheel or decides how it is built."""
    found = [ROOT / name for name in ("pyproject.toml", "deploy/hatch_build.py", "README.md", "LICENSE")]
    packaged = (path for package in ("proxy", "control") for path in (ROOT / package).rglob("*"))
    return found + [path for path in packaged if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc")]


def build_wheel(python: str) -> Path:
    """The wheel of the present sources for this Python, built if there is none."""
    compiler = has_compiler()
    kept = CACHE / "wheels" / PYTHON
    folder = kept / digest(wheel_sources(), sys.version, "compiler" if compiler else "none")
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    shutil.rmtree(str(kept), ignore_errors=True)
    os.environ["FRAMEGATE_COMPILED"] = str(CACHE / COMPILED)
    compiles = compiler and not build_hook().is_compiled(ROOT, CACHE / COMPILED)
    by_uv = ["build", "--wheel", "-o", str(folder), str(ROOT)]
    by_pip = ["-v", "wheel", "--no-deps", "-w", str(folder), str(ROOT)]
    output = run_installer(python, by_uv, by_pip, "wheel.log", ("compiling and " if compiles else "") + "building the wheel")
    wheel = sorted(folder.glob("*.whl"))[0]
    if is_pure(wheel):
        reasons = [line.partition("framegate: ")[2].strip() for line in output.splitlines() if "framegate: not compiled" in line]
        say("warning: " + (reasons[0] if reasons else "not compiled: this wheel is plain Python, and slower"))
    return wheel


def build_hook() -> ModuleType:
    """The module that builds the wheel. It is imported late, because it needs a newer Python than this file."""
    sys.path.insert(0, str(ROOT / "deploy"))
    import hatch_build

    return hatch_build


def is_pure(wheel: Path) -> bool:
    """Whether a wheel has no compiled modules; then it is for every platform."""
    return wheel.name.endswith("-none-any.whl")


def folder_of(kind: str) -> Path:
    """The folder of an environment."""
    return ROOT / KINDS[kind][0].format(*sys.version_info)


def set_up(kind: str) -> str:
    """Bring an environment up to date; returns what its hot path is: compiled or pure. The stamp has up to three words: digests of the Python, of the
    requirements, and of the installed wheel. Words of steps that are not finished are missing.
    """
    environment, extras = folder_of(kind), KINDS[kind][1]
    python, stamp = str(environment / "bin" / "python"), environment / "framegate.stamp"
    interpreter = digest([], sys.version, sys.base_prefix)
    before = stamp.read_text().split() if stamp.exists() else []
    if before[:1] != [interpreter] or not os.path.exists(python):
        make_environment(environment, uv())
        stamp.write_text(interpreter + "\n")
        before = [interpreter]
    requirements = digest([ROOT / "pyproject.toml"], extras)
    if kind == "pure":  # any installed wheel will do: the source is before it on the import path
        content = before[2] if before[1:2] == [requirements] else "source"
        build, target = "pure", ["-e", str(ROOT)]
    else:
        if kind == "test" and has_compiler():
            os.environ["FRAMEGATE_REQUIRE_COMPILED"] = "1"
        wheel = build_wheel(python)
        build, content, target = ("pure" if is_pure(wheel) else "compiled"), wheel.parent.name, [str(wheel)]
        if build == "pure" and os.environ.get("FRAMEGATE_REQUIRE_COMPILED") == "1":
            stop("the wheel is plain Python, though there is a compiler: .cache/wheel*.log says why", 1)
    if before[1:] != [requirements, content]:
        stamp.write_text(interpreter + "\n")
        steps = [(["--force-reinstall", "--no-deps", *target], f"installing framegate into {environment.name}")]
        if before[1:2] != [requirements]:
            steps.insert(0, ([*target[:-1], f"{target[-1]}[{extras}]"], "installing what framegate needs"))
        for words, text in steps:
            run_installer(python, ["pip", "install", "-q", *words], ["install", "-q", *words], f"install-{kind}.log", text)
        if tool := uv():  # each build of pyspark leaves 1.4 GB that nothing uses again
            run_logged([tool, "cache", "prune", "-q"], "uv.log", "pruning uv's cache", uv_variables())
        stamp.write_text(f"{interpreter} {requirements} {content}\n")
    return build


def run_command(command: list[str], environment: Path, build: str, source: bool = False) -> NoReturn:
    """Replace this process by the command, run in the environment; ``source``: the checkout's source is before the installed wheel."""
    path = os.environ.get("PATH", os.defpath)
    variables = dict(os.environ, PYTHONSAFEPATH="1", FRAMEGATE_EXPECT=build, VIRTUAL_ENV=str(environment), FRAMEGATE_USER_PATH=path)
    variables["PATH"] = str(environment / "bin") + os.pathsep + path
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        variables.pop(name, None)
    variables["PYTHONPYCACHEPREFIX"] = str(CACHE / "pycache")
    if source:
        variables["PYTHONPATH"] = str(ROOT / ".src")
    os.chdir(str(ROOT))
    os.execvpe(command[0], command, variables)


def main(arguments: list[str]) -> int:
    """Set up the environment, then run the command."""
    if sys.version_info < OLDEST_PYTHON:
        stop("Python {}.{} or newer is needed; this is {}".format(*OLDEST_PYTHON, sys.version.split()[0]))
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    for option in ("--with", "--wish"):
        parser.add_argument(option, default=[], type=lambda text: [NEEDS[name] for name in text.split(",")])
    asked = vars(parser.parse_args(arguments[:split]))
    kind, command = asked["kind"], arguments[split + 1 :]
    with one_at_a_time():
        needs = [(need, False) for need in asked["with"]] + [(need, True) for need in asked["wish"]]
        if not (folder_of(kind) / "bin" / "python").exists():
            needs.insert(0, (VENV, False))
        provide(needs)
        build_hook().link_sources(ROOT)
        build = set_up(kind)
    if command:
        run_command(command, folder_of(kind), build, source=kind == "pure")
    return 0


def on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Raise an exception, so that running steps are ended and temporary files removed."""
    raise StoppedError(number)


def guarded(arguments: list[str], task: Callable[[list[str]], int] | None = None) -> int:
    """Run a task (``main``); signals and errors of the operating system become one line and an exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        return (task or main)(arguments)
    except StoppedError as stopped:
        say("interrupted" if stopped.number == signal.SIGINT else "terminated")
        return 128 + stopped.number
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        advice = "; the checkout must be writable: environments and wheels are made in it" if error.errno in (errno.EROFS, errno.EACCES) else ""
        say(f"{where}{error.strerror}{advice}")
        return 2 if advice else 1


if __name__ == "__main__":
    raise SystemExit(guarded(sys.argv[1:]))
