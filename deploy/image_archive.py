"""Reads an image from its archive (OCI's layout, as for ``ctr images import``), and checks the rules of images."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MIB = 1 << 20
SIDECAR_LIMIT = 110 * MIB
USER = 10001
SHELLS = ("sh", "bash", "dash", "busybox", "apt", "dpkg", "pip", "gcc")
FOLDERS = ("run/framegate", "var/lib/framegate/tap")
SBOM = "usr/share/sbom/framegate.cdx.json"
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Entry:
    """The properties of one file, folder or link of an image."""

    kind: bytes
    mode: int
    owner: int
    group: int
    time: int
    link: str
    content: str


@dataclass
class Image:
    """An image, from its archive.

    Args:
        digest: of the manifest; a registry identifies the image by it.
        image_id: digest of the configuration.
        config: the configuration.
        compressed: bytes of the layers in the archive.
        size: bytes of the layers unpacked.
        entries: by path, without the leading slash; a later layer replaces entries of earlier ones.
        traces: words that must not be in the image, each with its file.
        sbom: the bill of materials, as JSON.
    """

    digest: str
    image_id: str
    config: dict[str, Any]
    compressed: int = 0
    size: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    traces: list[str] = field(default_factory=list)
    sbom: bytes = b""


def read(archive: Path, words: Iterable[bytes] = ()) -> Image:
    """Read an archive.

    Args:
        archive: of one image.
        words: that no file may contain.

    Raises ValueError: it is not an archive in OCI's layout with one image.
    """
    try:
        with tarfile.open(archive) as outer:
            return read_outer(outer, list(words))
    except (KeyError, tarfile.ReadError) as error:
        raise ValueError(f"{archive}: no archive of an image in OCI's layout: {error}") from error


def read_outer(outer: tarfile.TarFile, words: list[bytes]) -> Image:
    """The one image of an open archive."""

    def blob(digest: str) -> IO[bytes]:
        found = outer.extractfile("blobs/" + digest.replace(":", "/"))
        if found is None:
            raise KeyError(f"{digest} is no file")
        return found

    index = outer.extractfile("index.json")
    manifests = json.loads(index.read())["manifests"] if index else []
    if len(manifests) != 1:
        raise ValueError(f"{outer.name!s}: {len(manifests)} images in it, where one is expected")
    text = blob(manifests[0]["digest"]).read()
    manifest = json.loads(text)
    config = blob(manifest["config"]["digest"]).read()
    image = Image("sha256:" + hashlib.sha256(text).hexdigest(), hashlib.sha256(config).hexdigest(), json.loads(config))
    for layer in manifest["layers"]:
        image.compressed += layer["size"]
        read_layer(blob(layer["digest"]), image, words)
    return image


def read_layer(file: IO[bytes], image: Image, words: list[bytes]) -> None:
    """Add one layer to an image."""
    magic = file.read(2)
    file.seek(0)
    plain: Any = gzip.GzipFile(fileobj=file) if magic == GZIP else file
    with tarfile.open(fileobj=plain, mode="r|") as layer:
        for member in layer:
            name = member.name.removeprefix("./").strip("/")
            content = b""
            if member.isreg():
                reader = layer.extractfile(member)
                content = reader.read() if reader else b""
            if name == SBOM:
                image.sbom = content
            image.traces += [f"{name}: {word.decode(errors='replace')}" for word in words if word in content]
            image.entries[name] = Entry(
                member.type, member.mode, member.uid, member.gid, int(member.mtime), member.linkname, hashlib.sha256(content).hexdigest()
            )
        image.size += layer.offset


def faults(image: Image, target: str, epoch: int) -> Iterator[str]:
    """The rules that an image breaks, each in a sentence.

    Args:
        image: the image.
        target: framegate or spark.
        epoch: the latest time that its files may have.
    """
    settings = image.config["config"]
    if settings.get("User") != f"{USER}:{USER}":
        yield f"it runs as {settings.get('User') or 'root'}, not as {USER}:{USER}"
    if not settings.get("Labels", {}).get("org.opencontainers.image.version"):
        yield "it has no label that says its version"
    if not image.sbom:
        yield f"it has no bill of materials at /{SBOM}"
    for name in FOLDERS:
        entry = image.entries.get(name)
        if entry is None or (entry.owner, entry.group, entry.mode & 0o7777) != (USER, USER, 0o700):
            yield f"/{name} is not a folder of {USER}:{USER} with mode 0700"
    for name, entry in sorted(image.entries.items()):
        yield from entry_faults(name, entry, target, epoch)
    yield from (f"it names something of the machine that built it: {trace}" for trace in image.traces[:5])
    if target == "framegate" and image.size > SIDECAR_LIMIT:
        yield f"it has {image.size / MIB:.1f} MiB, more than {SIDECAR_LIMIT // MIB}"


def entry_faults(name: str, entry: Entry, target: str, epoch: int) -> Iterator[str]:
    """The rules that one file breaks."""
    folder, _, last = name.rpartition("/")
    if entry.kind in (tarfile.REGTYPE, tarfile.DIRTYPE) and entry.mode & 0o002 and not entry.mode & 0o1000:
        yield f"/{name} is writable by every user"
    if target == "framegate" and entry.kind == tarfile.REGTYPE and entry.mode & 0o6000:
        yield f"/{name} has the bit setuid or setgid"
    if target == "framegate" and folder.rpartition("/")[2] in ("bin", "sbin") and last in SHELLS:
        yield f"/{name} is in an image that needs no shell and no tools"
    if entry.time > epoch:
        yield f"/{name} has the time of its build, so another build gives another image"


def differences(one: Image, two: Image) -> list[str]:
    """The paths at which two images differ; the first is the configuration, if it differs."""
    found = ["(configuration)"] if one.config != two.config else []
    return found + sorted(name for name in one.entries.keys() | two.entries.keys() if one.entries.get(name) != two.entries.get(name))
