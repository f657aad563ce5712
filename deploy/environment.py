"""Sets up what a task of the Makefile needs, then runs the task in it.

``python3 deploy/environment.py KIND [--with java] [--wish compiler,openssl,maven,mariadb,peers,clients,browser] [-- COMMAND …]``

====  ==============  ================================================================================================
kind  where           what
====  ==============  ================================================================================================
run   .venv           the wheel, compiled where that is possible, with everything a user wants
test  .venv-dev-3.x   the same wheel, with the tools of the tests; one for each Python, which the name tells
pure  .venv-dev-3.x   the same environment; ``.src``, the checkout's own source, is before the wheel on the import path
====  ==============  ================================================================================================

uv makes and fills the environments, pip where there is no uv. What is there already is left alone: each environment keeps a stamp of what it was made
from; the wheel is built again only when its sources change, and compiled only when what it compiles changes. What the machine lacks is installed
when we are root on a machine with apt; else one line says what to install. ``--with``: without it the task ends here, before anything starts;
``--wish``: the task goes on, and the line says what it then lacks. The command runs with
``PYTHONSAFEPATH=1`` (the working directory is never an import path), the environment's programs first on ``PATH`` (what it was before is in
``FRAMEGATE_USER_PATH``), and ``FRAMEGATE_EXPECT=compiled|pure``: what the hot path's modules must be. Where there is a compiler, ``test`` never
goes on without it.

Whoever waits sees a clock. Ctrl-C and SIGTERM end what was started, and leave nothing but what the next call goes on from.

Exit codes of its own: 1 something failed, 2 something is missing or wrong on this machine, 130 Ctrl-C, 143 SIGTERM.

Only the standard library is used here, and no syntax newer than Python 3.8, so that an older Python gets a sentence and not a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
USER_EXTRAS = "spark,otlp,prometheus,kafka"
KINDS: dict[str, tuple[str, str]] = {
    "run": (".venv", USER_EXTRAS),
    "test": (".venv-dev-{}.{}", USER_EXTRAS + ",dev"),
    "pure": (".venv-dev-{}.{}", USER_EXTRAS + ",dev"),
}
USUAL_S = {"compiling and building the wheel": 60, "building the wheel": 5, "installing what framegate needs": 60}
"""How long it takes on a machine with two cores; afterwards how long it took here is known."""
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17
SBIN = "/usr/sbin"  # where servers are, and few people's path leads
OPENSSL_HEADER = "/usr/include/openssl/ssl.h"
PLAIN_EVERY_S = 10
GRACE_S = 10


class StoppedError(Exception):
    """SIGINT or SIGTERM came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def say(text: str) -> None:
    """One line to a person; standard output stays the task's."""
    print("framegate: " + text, file=sys.stderr, flush=True)


def stop(text: str, code: int = 2) -> NoReturn:
    """End here, before anything starts."""
    say(text)
    raise SystemExit(code)


def has_venv() -> bool:
    """Whether this Python can make environments: Debian keeps what puts pip into them in a package of its own."""
    return all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip"))


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


def has_mariadb() -> bool:
    """Whether a MariaDB server is here, its command line, and its library for Perl."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), SBIN))
    if not all(shutil.which(name, path=path) for name in ("mariadbd", "mariadb", "perl")):
        return False
    return subprocess.run(["perl", "-MDBD::MariaDB", "-e", "1"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def has_openssl() -> bool:
    """Whether OpenSSL's headers are here; the bench's load generator, which is written in C, is built with them."""
    return os.path.exists(OPENSSL_HEADER)


def has_clients() -> bool:
    """Whether the clients that meet a broker through framegate and come from no package index are here."""
    return all(shutil.which(name) for name in ("kcat", "openssl"))


def has_browser() -> bool:
    """Whether Chromium is here, which photographs dashboards."""
    return shutil.which("chromium") is not None


def has_peers() -> bool:
    """Whether the peers of the bench are here."""
    return all(shutil.which(name) for name in ("haproxy", "nginx")) and os.path.exists("/usr/lib/nginx/modules/ngx_stream_module.so")


class Need:
    """Something of the machine that a task needs or wishes for.

    Args:
        name: in ``--with`` and ``--wish``.
        title: for people.
        present: whether it is here.
        packages: that bring it, Debian's.
        without: what is so as long as it is missing, for those who only wish for it.
        instead: packages where a release of Debian has not those.
    """

    def __init__(self, name: str, title: str, present: Callable[[], bool], packages: list[str], without: str, instead: Sequence[str] = ()) -> None:
        self.name = name
        self.title = title
        self.present = present
        self.packages = packages
        self.without = without
        self.instead = list(instead)


VENV = Need("venv", "venv of this Python", has_venv, ["python3-venv"], "", ["python{}.{}-venv".format(*sys.version_info)])

NEEDS = {
    need.name: need
    for need in (
        Need("java", f"Java {OLDEST_JAVA} or newer", has_java, ["openjdk-17-jre-headless"], "there is no Spark", ["openjdk-21-jre-headless"]),
        Need(
            "compiler",
            "a C compiler with the headers of this Python",
            has_compiler,
            ["gcc", "libc6-dev", "python3-dev"],
            "the hot path runs as plain Python, and slower",
        ),
        Need("maven", "Maven", has_maven, ["maven"], "tests with a real Kafka broker are skipped"),
        Need(
            "mariadb",
            "MariaDB with its clients",
            has_mariadb,
            ["mariadb-server-core", "mariadb-client-core", "libdbd-mariadb-perl"],
            "tests with a real MariaDB are skipped",
        ),
        Need("openssl", "OpenSSL with its headers", has_openssl, ["libssl-dev"], "the bench's load generator, and its tests, are left out"),
        Need("browser", "Chromium", has_browser, ["chromium"], "dashboards are not drawn"),
        Need("clients", "kcat or OpenSSL's command", has_clients, ["kcat", "openssl"], "what they do through framegate is not shown"),
        Need("peers", "HAProxy or NGINX", has_peers, ["haproxy", "nginx", "libnginx-mod-stream"], "peers that are missing are left out"),
    )
}


def provide(wanted: Sequence[tuple[Need, bool]]) -> None:
    """Install what is missing, or say in one line what to install.

    Args:
        wanted: what a task needs, each with whether it is only wished for.
    """
    missing = [(need, wished) for need, wished in wanted if not need.present()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        read_lists()
        install(*(need for need, _ in missing))  # at once; what one release has not is asked for by itself
        missing = [(need, wished) for need, wished in missing if not (need.present() or install(need) or install(need, instead=True))]
        if missing:
            say("apt-get could not install everything: see .cache/apt.log")
    if not missing:
        return
    titles = [need.title for need, _ in missing]
    names = " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))
    packages = " ".join(dict.fromkeys(package for need, _ in missing for package in need.packages))
    asked = f"{names} {'are' if titles[1:] else 'is'} missing: install {'them' if titles[1:] else 'it'} (on Debian: apt-get install {packages})"
    if not all(wished for _, wished in missing):
        stop(asked)
    say(f"warning: {asked}; until then " + "; ".join(need.without for need, _ in missing))


@functools.cache
def read_lists() -> None:
    """Let apt know what there is; once."""
    run_logged(["apt-get", "update", "-q"], "apt-update.log", "reading apt's lists", apt_environment())


def install(*needs: Need, instead: bool = False) -> bool:
    """Have apt install something; whether it is here then."""
    packages = [package for need in needs for package in (need.instead if instead else need.packages)]
    if packages:
        command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages]
        run_logged(command, "apt.log", "installing " + " ".join(packages), apt_environment())
    return all(need.present() for need in needs)


def apt_environment() -> dict[str, str]:
    """Without questions; in runlevel 1 a server that is installed is not started."""
    return dict(os.environ, DEBIAN_FRONTEND="noninteractive", RUNLEVEL="1")


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


def wait_with_clock(ready: Callable[[float], bool], text: str, hint: str = "", progress: Callable[[], str] = str) -> None:
    """Wait until something is ready, and show how much time has passed.

    On a terminal one line counts the seconds; elsewhere there is a line every ten.

    Args:
        ready: waits at most as many seconds as it is told; whether it is ready.
        text: what is being done.
        hint: behind it, the first time.
        progress: how far it is, put behind the seconds.
    """
    moving = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    started, said = time.monotonic(), 0
    sys.stderr.write(f"framegate: {text}{hint}" + ("" if moving else "\n"))
    sys.stderr.flush()
    try:
        while not ready(1.0):
            passed = int(time.monotonic() - started)
            if moving:
                sys.stderr.write(f"\rframegate: {text}{hint}, {passed} s{progress()}")
                sys.stderr.flush()
            elif passed // PLAIN_EVERY_S > said:
                said = passed // PLAIN_EVERY_S
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
    """End a process that leads a session, and everything that it started: as Ctrl-C would first, for its own cleaning up."""
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


def usual(text: str, took_s: float | None = None) -> int:
    """How many seconds a step takes: as long as the last time here, else as long as it usually does; 0: not known.

    Args:
        text: the step.
        took_s: how long it took now, which is kept.
    """
    file = CACHE / "times.json"
    times = json.loads(file.read_text()) if file.exists() else {}
    if took_s is not None:
        file.write_text(json.dumps({**times, text: round(took_s)}))
    return int(times.get(text, USUAL_S.get(text, 0)))


def run_logged(command: list[str], log: str, text: str, environment: dict[str, str] | None = None, progress: Callable[[], str] = str) -> int:
    """Run a command to its end, its words into a log and its temporary files into the cache, where they are removed; returns its exit code."""
    seconds, started = usual(text), time.monotonic()
    hint = f" (about {seconds} s)" if seconds >= PLAIN_EVERY_S else ""
    temporary = CACHE / "tmp"
    shutil.rmtree(str(temporary), ignore_errors=True)  # of a call that was killed
    temporary.mkdir(parents=True)
    variables = dict(os.environ if environment is None else environment, TMPDIR=str(temporary))
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
        if process.returncode == 0:
            usual(text, time.monotonic() - started)
        return process.returncode
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def run_or_stop(command: list[str], log: str, text: str, failed: str, progress: Callable[[], str] = str) -> str:
    """Run a command; its words, which are shown when it fails."""
    code = run_logged(command, log, text, progress=progress)
    output = (CACHE / log).read_text(errors="replace")
    if code != 0:
        sys.stderr.write("\n".join(output.splitlines()[-30:]) + "\n")
        stop(f"{failed} (the whole output: .cache/{log})", 1)
    return output


def uv() -> str:
    """Uv's path: what is on ``PATH``, else what pip brings into the cache; empty: it cannot be had."""
    found = shutil.which("uv")
    folder = CACHE / "uv"
    ours = str(folder / "bin" / "uv")
    if found is None and not os.path.exists(ours):
        make_environment(folder)
        run_logged([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "uv"], "uv.log", "installing uv")
    return found or (ours if os.path.exists(ours) else "")


def make_environment(environment: Path, tool: str = "") -> None:
    """A new environment of this very Python, in place of what is there; by uv, or with pip in it."""
    shutil.rmtree(str(environment), ignore_errors=True)
    command = [tool, "venv", "-q", "--python", sys.executable] if tool else [sys.executable, "-m", "venv"]
    run_or_stop([*command, str(environment)], "venv.log", f"making {environment.name}", "the environment could not be made")


def pip(python: str, arguments: list[str], log: str, text: str) -> str:
    """Install something, or build it, for that Python: by uv, else by pip, which knows settings that uv does not; the words of it."""
    tool, wheel = uv(), arguments[0] == "wheel"
    if tool:
        command = [tool, "pip", *arguments, "--python", python]
        if wheel:
            command = [tool, "build", "--wheel", "--python", python, "-o", arguments[1], str(ROOT)]
        variables = dict(os.environ, UV_CACHE_DIR=str(CACHE / "uv-cache"))
        if run_logged(command, log, text, variables, compiled_so_far) == 0:
            return (CACHE / log).read_text(errors="replace")
        say(f"uv could not do it (.cache/{log}); pip tries")
    if not os.path.exists(os.path.join(os.path.dirname(python), "pip")):
        run_or_stop([python, "-m", "ensurepip"], "venv.log", "adding pip", "pip could not be added")
    again = ["-v", "wheel", "--no-deps", "-w", arguments[1], str(ROOT)] if wheel else arguments
    return run_or_stop([python, "-m", "pip", "--disable-pip-version-check", *again], log, text, f"{text} failed", compiled_so_far)


def compiled_folder() -> Path:
    """Where the build hook keeps what it compiled; one for each Python."""
    return CACHE / "compiled-{}-{}.{}".format(sys.implementation.name, *sys.version_info)


def compiled_so_far() -> str:
    """How many of the C files of a running build are compiled."""
    build = compiled_folder() / "build"
    files, done = len(list(build.rglob("*.c"))), len(list(build.rglob("*.o")))
    return f", {done} of {files} files compiled" if 0 < done < files else ""


def build_wheel(python: str) -> Path:
    """The wheel of the sources as they are now, for this Python."""
    compiler = has_compiler()
    kept = CACHE / "wheels" / "{}-{}.{}".format(sys.implementation.name, *sys.version_info)
    folder = kept / digest(wheel_sources(), sys.version, "compiler" if compiler else "none")
    found = sorted(folder.glob("*.whl"))
    if found:
        return found[0]
    shutil.rmtree(str(kept), ignore_errors=True)
    os.environ["FRAMEGATE_COMPILED"] = str(compiled_folder())
    text = ("compiling and " if compiler and must_compile() else "") + "building the wheel"
    output = pip(python, ["wheel", str(folder)], "wheel.log", text)
    wheel = sorted(folder.glob("*.whl"))[0]
    if is_pure(wheel):
        lines = [line.strip() for line in output.splitlines() if "framegate: not compiled" in line]
        say("warning: " + (lines[0].partition("framegate: ")[2] if lines else "not compiled: this wheel is plain Python, and slower"))
    return wheel


def must_compile() -> bool:
    """Whether the build hook will compile."""
    return not build_hook().is_compiled(ROOT, compiled_folder())


def build_hook() -> ModuleType:
    """The module that builds the wheel; it needs a Python that this module only asks for."""
    sys.path.insert(0, str(ROOT / "deploy"))
    import hatch_build

    return hatch_build


def is_pure(wheel: Path) -> bool:
    """A wheel for every platform holds nothing compiled."""
    return wheel.name.endswith("-none-any.whl")


def set_up(kind: str) -> tuple[Path, str]:
    """Bring one environment up to date; returns it, and what its hot path is: compiled or pure."""
    name, extras = KINDS[kind][0].format(*sys.version_info), KINDS[kind][1]
    environment = ROOT / name
    python = str(environment / "bin" / "python")
    stamp = environment / "framegate.stamp"
    interpreter = digest([], sys.version, sys.base_prefix)
    before = stamp.read_text().split() if stamp.exists() else []
    if before[:1] != [interpreter] or not os.path.exists(python):
        make_environment(environment, uv())
        stamp.write_text(interpreter + "\n")  # from here on what was begun can be gone on with
        before = [interpreter]
    requirements = digest([ROOT / "pyproject.toml"], extras)
    if kind == "pure":  # whatever is installed: `become` puts the source before it
        content = before[2] if before[1:2] == [requirements] else "source"
        build, target = "pure", ["-e", str(ROOT)]
    else:
        if kind == "test" and has_compiler():
            os.environ["FRAMEGATE_REQUIRE_COMPILED"] = "1"
        wheel = build_wheel(python)
        build, content, target = ("pure" if is_pure(wheel) else "compiled"), wheel.parent.name, [str(wheel)]
        if build == "pure" and os.environ.get("FRAMEGATE_REQUIRE_COMPILED") == "1":
            stop("the wheel is plain Python, though there is a compiler: .cache/wheel.log says why", 1)
    if before[1:] != [requirements, content]:
        stamp.write_text(interpreter + "\n")
        log = f"install-{kind}.log"
        if before[1:2] != [requirements]:
            pip(python, ["install", "-q", *target[:-1], f"{target[-1]}[{extras}]"], log, "installing what framegate needs")
        pip(python, ["install", "-q", "--force-reinstall", "--no-deps", *target], log, f"installing framegate into {name}")
        stamp.write_text(f"{interpreter} {requirements} {content}\n")
    return environment, build


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two tasks started at once must not set up the same environment."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "environment.lock", "w") as lock:

        def taken(seconds: float) -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(seconds)
                return False
            return True

        if not taken(0):
            wait_with_clock(taken, "waiting for another task that sets up")
        yield


def become(command: list[str], environment: Path, build: str, source: bool = False) -> NoReturn:
    """Replace this process by the command, run in the environment; ``source``: with the checkout's own source before what is installed."""
    path = os.environ.get("PATH", os.defpath)
    variables = dict(os.environ, PYTHONSAFEPATH="1", FRAMEGATE_EXPECT=build, VIRTUAL_ENV=str(environment), FRAMEGATE_USER_PATH=path)
    variables["PATH"] = str(environment / "bin") + os.pathsep + path
    variables.pop("PYTHONPATH", None)
    if source:
        variables["PYTHONPATH"] = str(ROOT / ".src")
    os.chdir(str(ROOT))
    os.execvpe(command[0], command, variables)


def main(arguments: list[str]) -> int:
    """Set up, then become the command."""
    if sys.version_info < OLDEST_PYTHON:
        stop("Python {}.{} or newer is needed; this is {}".format(*OLDEST_PYTHON, sys.version.split()[0]))
    split = arguments.index("--") if "--" in arguments else len(arguments)
    words, command = arguments[:split], arguments[split + 1 :]
    asked = dict(zip(words[1::2], words[2::2], strict=False))
    wanted = [(name, option == "--wish") for option, names in asked.items() for name in names.split(",")]
    known = set(asked) <= {"--with", "--wish"} and all(name in NEEDS for name, _ in wanted)
    if not words or words[0] not in KINDS or len(words) % 2 == 0 or not known:
        stop(__doc__ or "")
    with one_at_a_time():
        needs = [(NEEDS[name], wished) for name, wished in wanted]
        if not (ROOT / KINDS[words[0]][0].format(*sys.version_info) / "bin" / "python").exists():
            needs.insert(0, (VENV, False))
        provide(needs)
        build_hook().link_sources(ROOT)
        environment, build = set_up(words[0])
    if command:
        become(command, environment, build, source=words[0] == "pure")
    return 0


def on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind: what runs is ended, what is temporary removed."""
    raise StoppedError(number)


def guarded(arguments: list[str], task: Callable[[list[str]], int] | None = None) -> int:
    """A task (else ``main``) with one line and a code for what can happen to it."""
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
