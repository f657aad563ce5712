"""Make the root file system of an image and its bill of materials, inside the container that builds it.

``python3 image_root.py framegate DIR`` puts into ``DIR/root`` exactly what the sidecar needs: Debian's Python with its standard library, the shared
libraries that it and ``/opt/framegate`` load, certificates of public authorities, and users; below ``DIR/run`` and ``DIR/lib`` are the folders of
framegate's user. ``python3 image_root.py spark /`` prepares a whole Debian in place.

Both add users, Python's bytecode, which is never compared with its source (the files of a container do not change, and its root is read-only; the
sidecar has the sources of framegate only), and in
``/usr/share/sbom`` a bill of materials in CycloneDX 1.6: every Python package, and every Debian package that has a file in the image.

The result depends on the installed packages only, not on the time or on the order of files in a folder.

Exit codes: 1 something that the image needs is missing.
"""

from __future__ import annotations

import compileall
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

USER = 10001
ENVIRONMENT = Path("/opt/framegate")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SBOM = Path("usr/share/sbom")
DPKG_FORMAT = "${binary:Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n"
RELEASE = "debian-13"
# Modules of the standard library that the sidecar does not use: for tests, drawing, editing, debugging, profiling, installing, linking Python into
# programs, mail folders, sound and SQLite; and those in Python that have the same in C.
LEFT_OUT = {"test", "idlelib", "ensurepip", "tkinter", "turtle.py", "turtledemo", "pydoc_data", "venv", "curses", "sitecustomize.py", "__pycache__"}
LEFT_OUT |= {"_pyrepl", "doctest.py", "pdb.py", "pydoc.py", "_pydatetime.py", "_pydecimal.py", "_pyio.py"}
LEFT_OUT |= {"sqlite3", "cProfile.py", "profile.py", "pstats.py", "trace.py", "tabnanny.py", "pyclbr.py", "modulefinder.py"}
LEFT_OUT |= {"pickletools.py", "mailbox.py", "wave.py"}
LEFT_OUT_PREFIXES = (
    "config-",
    "_test",
    "_tkinter",
    "_curses",
    "_dbm",
    "_gdbm",
    "_ctypes_test",
    "readline",
    "xxlimited",
    "_xx",
    "_sqlite3",
    "_lsprof",
)
# Files of the environment for compilers, type checkers and tests; the compiler of cffi, of which cryptography needs the library in C only; and most
# lexers of pygments, with which rich would colour source code.
UNREAD = ("__pycache__", "include", "testdata", "*.pyi", "*.pyx", "*.pxd", "*.h", "*.c", "*.proto", "cffi", "pycparser", "pycparser-*.dist-info")
AUTHORITIES = ("certifi/cacert.pem", "grpc/_cython/_credentials/roots.pem")  # copies of public authorities, instead of which CERTIFICATES is used
LEXERS = "pygments/lexers"
LEXERS_KEPT = {"__init__.py", "_mapping.py", "python.py", "special.py"}
PASSWD = f"root:x:0:0:root:/root:/usr/sbin/nologin\nframegate:x:{USER}:{USER}:framegate:/var/lib/framegate:/usr/sbin/nologin\n"
GROUP = f"root:x:0:\nframegate:x:{USER}:\n"
# What Debian keeps about its installation: it names mirrors and times, and nothing is installed into a finished image.
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
    """Something that the image needs is missing in the container that builds it."""


def left_out(_folder: str, names: list[str]) -> set[str]:
    """The names in a folder of the standard library that are left out."""
    return {name for name in names if name in LEFT_OUT or name.startswith(LEFT_OUT_PREFIXES)}


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def programs(root: Path) -> list[Path]:
    """Every program and library below a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path))


def libraries(output: str) -> set[Path]:
    """The paths in the output of ``ldd``. Raises MissingError: a library was not found."""
    found: set[Path] = set()
    for line in output.splitlines():
        name, _, target = line.strip().partition(" => ")
        if target.startswith("not found"):
            raise MissingError(f"{name}: no such library in the container that builds the image")
        path = (target or name).partition(" (")[0]
        if path.startswith("/"):
            found.add(Path(path))
    return found


def needed_libraries(root: Path) -> set[Path]:
    """The paths of the container's libraries that programs and libraries below ``root`` load."""
    found: set[Path] = set()
    for path in programs(root):
        done = subprocess.run(["ldd", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:  # otherwise it is linked statically
            found |= {library for library in libraries(done.stdout) if not library.is_relative_to(root)}
    return {library for library in found if not library.is_relative_to(ENVIRONMENT)}


def put(root: Path, path: Path) -> set[Path]:
    """Copy a file of the container to the same place below ``root``, and the target of a link, too. Returns the real paths of the copied files."""
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
    """Copy Debian's Python and its standard library; returns the files."""
    program = Path("/usr/bin/python3")
    library = Path(sysconfig.get_path("stdlib"))
    found = put(root, program)
    target = root / library.relative_to("/")
    shutil.copytree(library, target, ignore=left_out, symlinks=True)
    return found | {library / path.relative_to(target) for path in target.rglob("*") if path.is_file()}


def put_environment(root: Path) -> None:
    """Copy the environment: framegate and its dependencies, without symbols, and of the programs only Python and framegate."""
    target = root / ENVIRONMENT.relative_to("/")
    shutil.copytree(ENVIRONMENT, target, symlinks=True, ignore=shutil.ignore_patterns(*UNREAD))
    unwanted = [path for path in (target / "bin").iterdir() if not path.name.startswith("python") and path.name != "framegate"]
    unwanted += [path for path in target.rglob(f"{LEXERS}/*.py") if path.name not in LEXERS_KEPT]
    for path in unwanted:
        path.unlink()
    for path in (path for name in AUTHORITIES for path in target.rglob(name)):
        path.unlink()
        path.symlink_to(CERTIFICATES)
    for path in programs(target):
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def put_settings(root: Path) -> None:
    """Write users, names and certificates into ``/etc``."""
    for folder in ("etc/ssl/certs", "usr/lib/ssl", "etc/framegate", "var/lib", "run", "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")):
        (root / "etc" / name).write_text(text)
    put(root, CERTIFICATES)
    put(root, Path("/etc/os-release"))
    # OpenSSL reads /usr/lib/ssl.
    (root / "usr/lib/ssl/cert.pem").symlink_to(CERTIFICATES)
    (root / "usr/lib/ssl/certs").symlink_to("/etc/ssl/certs")
    put(root, Path("/etc/ssl/openssl.cnf"))
    (root / "usr/lib/ssl/openssl.cnf").symlink_to("/etc/ssl/openssl.cnf")


def put_packages(root: Path, names: list[str]) -> None:
    """Copy the licence of each Debian package that has a file in the image, and its entry, in the place that scanners read if there is no dpkg."""
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(subprocess.run(["dpkg-query", "--status", name], stdout=subprocess.PIPE, text=True, check=True).stdout)
        licence = root / "usr/share/doc" / name / "copyright"
        licence.parent.mkdir(parents=True)
        shutil.copyfile(Path("/usr/share/doc") / name / "copyright", licence)


def compile_bytecode(root: Path, folders: list[Path]) -> None:
    """Write bytecode beside every source, in the order of the names, except of modules that are compiled to a library. Raises MissingError: a source
    is not valid in this version of Python.
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


def leave_out_sources(folder: Path, kept: Path) -> None:
    """Put the bytecode of each module below a folder in the place of its source, except below ``kept``. Tracebacks have no text of its lines."""
    for source in sorted(folder.rglob("*.py")):
        bytecode = Path(importlib.util.cache_from_source(str(source)))
        if bytecode.exists() and not source.is_relative_to(kept):
            bytecode.rename(source.with_suffix(".pyc"))
            source.unlink()
    for cache in folder.rglob("__pycache__"):
        if not any(cache.iterdir()):
            cache.rmdir()


def owners(paths: Iterable[Path]) -> set[str]:
    """The Debian packages that have these files; files without a package are ignored."""
    output = subprocess.run(
        ["dpkg-query", "--search", *sorted(map(str, paths))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    ).stdout
    lines = [line for line in output.splitlines() if not line.startswith("diversion by ")]
    return {name.strip().partition(":")[0] for line in lines for name in line.partition(": ")[0].split(",")}


def installed() -> list[str]:
    """Every Debian package that is installed."""
    output = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Package}\n"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return sorted({line[3:] for line in output.splitlines() if line.startswith("ii")})


def debian_components(names: list[str]) -> list[dict[str, Any]]:
    """Entries of Debian packages, each with its source package, which security notices name."""
    output = subprocess.run(["dpkg-query", "--show", "--showformat", DPKG_FORMAT, *names], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [debian_component(*line.split("\t")) for line in sorted(output.splitlines())]


def debian_component(name: str, version: str, architecture: str, source: str, source_version: str) -> dict[str, Any]:
    """The entry of a Debian package."""
    name = name.partition(":")[0]
    upstream = quote(f"{source}@{source_version}", safe="")
    url = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}&distro={RELEASE}&upstream={upstream}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def python_components(environment: Path) -> list[dict[str, Any]]:
    """Entries of the Python packages of an environment."""
    (folder,) = environment.glob("lib/python3.*/site-packages")
    found = sorted(metadata.distributions(path=[str(folder)]), key=lambda package: package.metadata["Name"].lower())
    return [python_component(package) for package in found]


def python_component(package: metadata.Distribution) -> dict[str, Any]:
    """The entry of a Python package, with its licence if that is an SPDX expression."""
    name, version = package.metadata["Name"].lower().replace("_", "-").replace(".", "-"), package.version
    url = f"pkg:pypi/{quote(name)}@{quote(version, safe='')}"
    component: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    if "License-Expression" in package.metadata:
        component["licenses"] = [{"expression": package.metadata["License-Expression"]}]
    return component


def bill_of_materials(environment: Path, packages: list[str], epoch: int) -> str:
    """The bill of materials as JSON.

    Args:
        environment: the environment with framegate.
        packages: names of Debian packages.
        epoch: its time, seconds since 1970.
    """
    every = python_components(environment)
    (own,) = (component for component in every if component["name"] == "framegate")
    components = [component for component in every if component is not own] + debian_components(packages)
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(every + components)).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.UTC).isoformat(),
            "component": {**own, "type": "application"},
        },
        "components": components,
    }
    return json.dumps(bill, indent=1) + "\n"


def write_sbom(root: Path, environment: Path, packages: list[str]) -> None:
    """Write the bill of materials into the image."""
    folder = root / SBOM
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "framegate.cdx.json").write_text(bill_of_materials(environment, packages, int(os.environ["SOURCE_DATE_EPOCH"])))


def make_sidecar(target: Path) -> None:
    """Make the sidecar's root file system, and the folders of its user."""
    root = target / "root"
    root.mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    taken = put_python(root)
    put_environment(root)
    # libgcc_s is loaded by name when a thread ends early, so ldd does not show it.
    wanted = needed_libraries(root) | {Path(sysconfig.get_config_var("LIBDIR")) / "libgcc_s.so.1"}
    for library in sorted(wanted):
        taken |= put(root, library)
    put_settings(root)
    packages = sorted(owners(taken) | {"base-files", "ca-certificates"})
    put_packages(root, packages)
    environment = root / ENVIRONMENT.relative_to("/")
    folders = [root / "usr/lib" / Path(sysconfig.get_path("stdlib")).name, environment]
    compile_bytecode(root, folders)
    (own,) = environment.glob("lib/python3.*/site-packages/framegate")
    for folder in folders:
        leave_out_sources(folder, own)
    write_sbom(root, environment, packages)
    for path in ("run/framegate", "lib/tap"):
        (target / path).mkdir(parents=True, mode=0o700)


def ready_spark(root: Path) -> None:
    """Prepare a Debian with Java and the environment: add user, Spark's home, bytecode and bill of materials, and remove traces of the build."""
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
    write_sbom(root, ENVIRONMENT, installed())
    for trace in TRACES:
        path = root / trace
        if path.is_dir():
            for inner in path.iterdir():
                shutil.rmtree(inner) if inner.is_dir() and not inner.is_symlink() else inner.unlink()
        else:
            path.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    """The command line."""
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
