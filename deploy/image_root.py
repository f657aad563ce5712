"""Makes the root file system of an image, inside the container that builds it.

``python3 image_root.py framegate DIR``: into ``DIR/root`` goes what the sidecar needs and nothing else: Debian's Python with its standard library,
the shared libraries that it and ``/opt/framegate`` load, certificates of public authorities, users; below ``DIR/run`` and ``DIR/lib`` the folders
that framegate's user owns. ``python3 image_root.py spark /``: readies the whole of a Debian in its place.

Both: Python's bytecode beside its source, never checked against it again (a container's files do not change, and its root is read-only), users, and
a bill of materials (``image_sbom.py``) in ``/usr/share/sbom``.

The result depends on the packages installed and on nothing else: not on the hour, nor on the order of a folder.

Exit codes: 1 something that the image needs is not there.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from py_compile import PycInvalidationMode

import image_sbom

USER = 10001
ENVIRONMENT = Path("/opt/framegate")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SBOM = Path("usr/share/sbom")
# Of the standard library: what tests, draws, edits, installs, or links Python into programs; it would bring libraries, and no sidecar uses it.
LEFT_OUT = {"test", "idlelib", "ensurepip", "tkinter", "turtle.py", "turtledemo", "pydoc_data", "venv", "curses", "sitecustomize.py", "__pycache__"}
LEFT_OUT_PREFIXES = ("config-", "_test", "_tkinter", "_curses", "_dbm", "_gdbm", "_ctypes_test", "readline", "xxlimited", "_xx")
# Of the environment: what a compiler, a type checker or a test reads; and pygments' lexers: rich has them to colour source, which is nowhere here.
UNREAD = ("__pycache__", "include", "testdata", "*.pyi", "*.pyx", "*.pxd", "*.h", "*.c", "*.proto")
LEXERS = "pygments/lexers"
LEXERS_KEPT = {"__init__.py", "_mapping.py", "python.py", "special.py"}
PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\nframegate:x:{USER}:{USER}:framegate:/var/lib/framegate:/usr/sbin/nologin\n"
GROUP = f"root:x:0:\nframegate:x:{USER}:\n"
# What a Debian keeps of how it was installed: it names mirrors and hours, and nobody installs into an image that exists.
TRACES = (
    "etc/apt",
    "var/lib/apt",
    "var/cache",
    "var/log",
    "etc/machine-id",
    "var/lib/dpkg/status-old",
    "root/.cache",
    "tmp",
)


class MissingError(Exception):
    """Something that the image needs is not in the container that builds it."""


def left_out(_folder: str, names: list[str]) -> set[str]:
    """Of one folder of the standard library, what the image has not."""
    return {name for name in names if name in LEFT_OUT or name.startswith(LEFT_OUT_PREFIXES)}


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def programs(root: Path) -> list[Path]:
    """Every program and library below a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path))


def libraries(told: str) -> set[Path]:
    """The paths in what ``ldd`` told of a file.

    Raises:
        MissingError: it names a library that is nowhere.
    """
    found: set[Path] = set()
    for line in told.splitlines():
        name, _, target = line.strip().partition(" => ")
        if target.startswith("not found"):
            raise MissingError(f"{name}: no such library in the container that builds the image")
        path = (target or name).partition(" (")[0]
        if path.startswith("/"):
            found.add(Path(path))
    return found


def needed_libraries(root: Path) -> set[Path]:
    """The libraries of the container that programs and libraries below ``root`` load, by the paths at which they are looked for."""
    found: set[Path] = set()
    for path in programs(root):
        done = subprocess.run(["ldd", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:  # else it is linked statically
            found |= {library for library in libraries(done.stdout) if not library.is_relative_to(root)}
    return {library for library in found if not library.is_relative_to(ENVIRONMENT)}


def put(root: Path, path: Path) -> set[Path]:
    """Copy one file of the container to its place; a link, and what it leads to. Returns the real paths of what was copied."""
    folder, real = path.parent.resolve(), path.resolve()
    target = root / (folder / path.name).relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(target):
        if path.is_symlink():
            target.symlink_to(os.path.relpath(real, folder))
        else:
            shutil.copy2(path, target)
    return put(root, real) if path.is_symlink() else {real}


def put_python(root: Path) -> set[Path]:
    """Debian's Python and its standard library; returns the files."""
    program = Path("/usr/bin/python3")
    library = Path(sysconfig.get_path("stdlib"))
    found = put(root, program)
    target = root / library.relative_to("/")
    shutil.copytree(library, target, ignore=left_out, symlinks=True)
    return found | {library / path.relative_to(target) for path in target.rglob("*") if path.is_file()}


def put_environment(root: Path) -> None:
    """The environment: framegate and what it depends on, without symbols; of its programs Python and framegate."""
    target = root / ENVIRONMENT.relative_to("/")
    shutil.copytree(ENVIRONMENT, target, symlinks=True, ignore=shutil.ignore_patterns(*UNREAD))
    unwanted = [path for path in (target / "bin").iterdir() if not path.name.startswith("python") and path.name != "framegate"]
    unwanted += [path for path in target.rglob(f"{LEXERS}/*.py") if path.name not in LEXERS_KEPT]
    for path in unwanted:
        path.unlink()
    for path in programs(target):
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def put_settings(root: Path) -> None:
    """Users, names, certificates: what a program finds in ``/etc``."""
    for folder in ("etc/ssl/certs", "usr/lib/ssl", "etc/framegate", "var/lib", "run", "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")):
        (root / "etc" / name).write_text(text)
    put(root, CERTIFICATES)
    put(root, Path("/etc/os-release"))
    # OpenSSL looks below /usr/lib/ssl.
    (root / "usr/lib/ssl/cert.pem").symlink_to(CERTIFICATES)
    (root / "usr/lib/ssl/certs").symlink_to("/etc/ssl/certs")
    put(root, Path("/etc/ssl/openssl.cnf"))
    (root / "usr/lib/ssl/openssl.cnf").symlink_to("/etc/ssl/openssl.cnf")


def put_packages(root: Path, names: list[str]) -> None:
    """Of each Debian package that something was taken from: its licence, and its entry where scanners look when there is no dpkg."""
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(subprocess.run(["dpkg-query", "--status", name], stdout=subprocess.PIPE, text=True, check=True).stdout)
        licence = root / "usr/share/doc" / name / "copyright"
        licence.parent.mkdir(parents=True)
        shutil.copyfile(Path("/usr/share/doc") / name / "copyright", licence)


def compile_bytecode(root: Path, folders: list[Path]) -> None:
    """Bytecode beside every source, in the order of the names; none of what is compiled to a library, which is what Python loads.

    Raises:
        MissingError: a source that is no Python of this version.
    """
    strip, prepend = (None, None) if root == Path("/") else (str(root), "/")
    for folder in folders:
        if not compileall.compile_dir(
            folder,
            maxlevels=50,
            quiet=1,
            force=True,
            workers=1,
            stripdir=strip,
            prependdir=prepend,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        ):
            raise MissingError(f"{folder}: not everything in it could be compiled")
        for library in folder.rglob("*.so"):
            for bytecode in library.parent.glob(f"__pycache__/{library.name.partition('.')[0]}.*.pyc"):
                bytecode.unlink()


def write_sbom(root: Path, environment: Path, packages: list[str]) -> None:
    """The bill of materials of what is in the image."""
    folder = root / SBOM
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "framegate.cdx.json").write_text(image_sbom.document(environment, packages, int(os.environ["SOURCE_DATE_EPOCH"])))


def make_sidecar(target: Path) -> None:
    """The sidecar's root file system, and the folders of its user."""
    root = target / "root"
    root.mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    taken = put_python(root)
    put_environment(root)
    # libgcc_s is loaded by name when a thread ends early, so no file says that it is needed.
    wanted = needed_libraries(root) | {Path(sysconfig.get_config_var("LIBDIR")) / "libgcc_s.so.1"}
    for library in sorted(wanted):
        taken |= put(root, library)
    put_settings(root)
    packages = sorted(image_sbom.owners(taken) | {"base-files", "ca-certificates"})
    put_packages(root, packages)
    compile_bytecode(root, [root / "usr/lib" / Path(sysconfig.get_path("stdlib")).name, root / ENVIRONMENT.relative_to("/")])
    write_sbom(root, root / ENVIRONMENT.relative_to("/"), packages)
    for path in ("run/framegate", "lib/tap"):
        (target / path).mkdir(parents=True, mode=0o700)


def ready_spark(root: Path) -> None:
    """Ready a Debian with Java and the environment: user, Spark's home, bytecode, bill of materials, no traces."""
    with (root / "etc/passwd").open("a") as users, (root / "etc/group").open("a") as groups:
        users.write(PASSWD.splitlines()[1] + "\n")  # Hadoop's libraries ask for the name of the user that runs them
        groups.write(GROUP.splitlines()[1] + "\n")
    (spark,) = (root / ENVIRONMENT.relative_to("/")).glob("lib/python3.*/site-packages/pyspark")
    (root / "opt/spark").symlink_to(spark)
    for name in ("run/framegate", "var/lib/framegate", "var/lib/framegate/tap"):
        (root / name).mkdir(mode=0o700)
        os.chown(root / name, USER, USER)
    (root / "etc/framegate").mkdir()
    compile_bytecode(root, [Path(sysconfig.get_path("stdlib")), ENVIRONMENT])
    write_sbom(root, ENVIRONMENT, image_sbom.installed())
    for trace in TRACES:
        path = root / trace
        if path.is_dir():
            for inner in path.iterdir():
                shutil.rmtree(inner) if inner.is_dir() and not inner.is_symlink() else inner.unlink()
        else:
            path.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """Make the one that is asked for."""
    makers = {"framegate": make_sidecar, "spark": ready_spark}
    if len(arguments) != 2 or arguments[0] not in makers:
        sys.stderr.write(__doc__ or "")
        return 1
    os.umask(0o022)
    try:
        makers[arguments[0]](Path(arguments[1]))
    except (MissingError, OSError) as error:
        sys.stderr.write(f"framegate: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
