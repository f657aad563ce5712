"""Objects of the tap's log in an object store, or below a ``file://`` URL. The only module that uses obstore, which is loaded when a URL is used.

Where things are::

    <prefix>/<node>/<stream>/<base>.seg       a sealed segment, the bytes of the file; never changes
    <prefix>/<node>/_ledger.jsonl             the ledger, and how far the node has shipped (``ledger``); replaced as a whole

``<prefix>/<node>`` is a log for readers, like a tap directory (``log_segments``). A reader opens a segment as a copy on the local disk (``Copies``):
a segment is one request, and everything that reads files reads it. Spark's tasks read ranges of a segment (``part``) instead.

Everything is written by one request, which is refused if the object is not the one that its sender knew. So a request that was thought lost, and
arrives late, replaces nothing. Uploads in parts cannot be conditional, and are not used.
"""

import collections
import functools
import importlib.util
import mmap
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

Found = TypeVar("Found")
SCHEMES: Final = ("s3", "gs", "az", "file")
WHOLE: Final = 8 << 20  # A request may take 5 minutes, and an hour if it sends more than this
CHUNK: Final = 1 << 20
COPIES_BYTES: Final = 2 << 30  # Copies of segments beyond this size in total are deleted, the ones used longest ago first
_RETRIES: Final = 2
_QUERY: Final = re.compile(r"\?[^\s\"')]*")
_TIMES: Final = re.compile(r" in [0-9.]+(ns|µs|ms|s)\b")
_SHOWN: Final = 300


class StoreError(OSError):
    """A store refused a request, or did not answer. The message has no credentials."""


class ConflictError(StoreError):
    """The object exists, or is not the one that was expected."""


class AbsentError(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""


class Item(NamedTuple):
    """An object. ``modified_ns``: by the store's clock, since 1970."""

    name: str
    size: int
    modified_ns: int


def is_url(root: str) -> bool:
    """Whether a log is in a store."""
    return "://" in root


def url_fault(url: str) -> str:
    """What is wrong with a URL, in words; empty: nothing. No request is made."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in SCHEMES or "://" not in url:
        return f"must begin with {', '.join(f'{scheme}://' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}://"
    if parts.query or parts.fragment or "@" in parts.netloc:
        return "must have no user, query or fragment: credentials are taken from the environment"
    if (parts.scheme == "file") == bool(parts.netloc) or (parts.scheme == "file" and not parts.path.strip("/")):
        return "must be file:///, with an absolute path" if parts.scheme == "file" else "needs a bucket or container"
    return ""


def package_fault() -> str:
    """Why no store can be used here, in words; empty: it can."""
    return "" if importlib.util.find_spec("obstore") else "needs obstore, which is not installed: pip install 'framegate[ship]'"


def place_of(path: str) -> tuple[str, str]:
    """The log's root and the object's name in it, of a segment's path."""
    root, stream, name = path.rsplit("/", 2)
    return root, f"{stream}/{name}"


def node_of(root: str) -> str:
    """The node's name, of the root of its log."""
    return root.rstrip("/").rsplit("/", 1)[-1]


@functools.lru_cache(maxsize=64)
def _client(base: str, timeout: str = "5m") -> "ObjectStore":
    """One client for each bucket, so that its connections are shared. Credentials come from the environment, or from the machine's identity.
    ``timeout``: of a request.
    """
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    try:
        if base.startswith("file:"):
            return LocalStore(urllib.parse.unquote(urllib.parse.urlsplit(base).path))
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")  # options replace those of the environment
        options: ClientConfig = {"timeout": timeout, "connect_timeout": "10s", "allow_http": plain}
        return from_url(base, client_options=options, retry_config={"max_retries": _RETRIES})
    except BaseError as error:
        raise StoreError(f"{base}: {_clean(error)}") from None


def _clean(error: BaseException) -> str:
    """An error's first line without query strings, which may be signed, without a store's answer, which may quote what was signed, and without
    times, so that an error that is repeated has the same text.
    """
    text = _TIMES.sub("", _QUERY.sub("?…", str(error).partition("\n")[0])).partition("<")[0].rstrip(": ")
    return text[:_SHOWN] or type(error).__name__


class Store:
    """What is below one URL. Thread safe; every call may block for minutes. All raise StoreError; those that read, AbsentError when there is no such
    object.
    """

    def __init__(self, root: str, base: str, prefix: str) -> None:
        """``base``: URL of the bucket; ``prefix``: of all names, without slashes at its ends."""
        self.root = root
        self._base = base
        self._client = _client(base)
        self._prefix = prefix

    def _name(self, name: str) -> str:
        return "/".join(filter(None, (self._prefix, name)))

    def folders(self) -> list[str]:
        """The names of the folders directly below, sorted: one request for 1,000."""
        import obstore

        found = self._wrapped(lambda: obstore.list_with_delimiter(self._client, self._prefix or None))
        return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def items(self, folder: str, after: str = "") -> list[Item]:
        """The objects in a folder, sorted by name: one request for 1,000. ``after``: only names behind this one."""
        import obstore

        behind = f"{self._name(folder)}/{after}" if after else None
        found = self._wrapped(lambda: [item for page in obstore.list(self._client, self._name(folder), offset=behind) for item in page])
        return sorted(Item(item["path"].rpartition("/")[2], item["size"], int(item["last_modified"].timestamp() * 1e9)) for item in found)

    def read(self, name: str) -> tuple[bytes, Mapping[str, Any]]:
        """An object, and its version for ``replace``."""
        found = self.read_newer(name, None)
        assert found is not None, "it was not compared"
        return found

    def read_newer(self, name: str, version: Mapping[str, Any] | None) -> tuple[bytes, Mapping[str, Any]] | None:
        """``read``; None: it still has this version."""
        import obstore
        from obstore.exceptions import NotModifiedError

        def whole() -> tuple[bytes, Mapping[str, Any]] | None:
            try:
                found = obstore.get(self._client, self._name(name), options={"if_none_match": version["e_tag"]} if version else None)
                return bytes(found.bytes()), {"e_tag": found.meta["e_tag"], "version": found.meta["version"]}
            except NotModifiedError:
                return None

        return self._wrapped(whole)

    def size(self, name: str) -> tuple[int, Mapping[str, Any]]:
        """Of an object, in bytes; and its version for ``replace``."""
        import obstore

        found = self._wrapped(lambda: obstore.head(self._client, self._name(name)))
        return found["size"], {"e_tag": found["e_tag"], "version": found["version"]}

    def part(self, name: str, start: int, end: int) -> tuple[memoryview, int]:
        """The bytes of an object from ``start`` to ``end``, fewer where it ends before; and its size."""
        import obstore

        def ranged() -> tuple[memoryview, int]:
            found = obstore.get(self._client, self._name(name), options={"range": (start, end)})
            return memoryview(found.bytes()), found.meta["size"]

        return self._wrapped(ranged)

    def chunks(self, name: str) -> tuple[Iterator[bytes], Mapping[str, Any]]:
        """An object in order, in parts of about ``CHUNK``; and its version for ``replace``."""
        import obstore

        found = self._wrapped(lambda: obstore.get(self._client, self._name(name)))
        stream = iter(found.stream(min_chunk_size=CHUNK))

        def chunks() -> Iterator[bytes]:
            while (chunk := self._wrapped(lambda: next(stream, None))) is not None:
                yield bytes(chunk)

        return chunks(), {"e_tag": found.meta["e_tag"], "version": found.meta["version"]}

    def replace(self, name: str, chunks: Iterable[bytes | memoryview], version: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Write an object in the place of another one. ``chunks``: its bytes, which are not copied. ``version``: of the other one; None: there is
        none. On a file system it is compared before, but not at the same time. Returns the version. Raises ConflictError: it has another version.
        """
        import obstore

        parts = list(chunks)
        mode: Any = "create" if version is None else {key: value for key, value in version.items() if value is not None}
        if version is not None and self.root.startswith("file:"):
            if self.size(name)[1] != version:
                raise ConflictError(f"{self.root}/{name}: it was replaced")
            mode = "overwrite"
        client = self._client if sum(map(len, parts)) <= WHOLE else _client(self._base, "1h")
        return self._wrapped(lambda: dict(obstore.put(client, self._name(name), parts, mode=mode, use_multipart=False)))

    def remove(self, name: str) -> None:
        import obstore

        self._wrapped(lambda: obstore.delete(self._client, self._name(name)))

    def _wrapped(self, call: Callable[[], Found]) -> Found:
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            return call()
        except (AlreadyExistsError, PreconditionError) as error:
            raise ConflictError(f"{self.root}: {_clean(error)}") from None
        except FileNotFoundError as error:
            raise AbsentError(f"{self.root}: {_clean(error)}") from None
        except BaseError as error:
            raise StoreError(f"{self.root}: {_clean(error)}") from None


def store_at(root: str, *, create: bool = False) -> Store:
    """What is below a URL. ``root``: the URL. ``create``: make the folder of a ``file://`` URL. Raises StoreError: it is not valid, obstore is not
    installed, or the store cannot be used.
    """
    fault = url_fault(root) or package_fault()
    if fault:
        raise StoreError(f"{root} {fault}")
    parts = urllib.parse.urlsplit(root.rstrip("/"))
    if parts.scheme == "file":
        if create:
            os.makedirs(urllib.parse.unquote(parts.path), exist_ok=True)
        return Store(root, root.rstrip("/"), "")
    return Store(root, f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"))


def file_chunks(path: str) -> Iterator[memoryview]:
    """The bytes of a file that does not change, in parts of ``CHUNK``, which take no memory of their own."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        whole = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    for start in range(0, size, CHUNK):
        yield whole[start : start + CHUNK]


class Copies:
    """Copies of segments on the local disk, in files without names, which end with the process. Thread safe."""

    def __init__(self, most: int = COPIES_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._files: collections.OrderedDict[str, tuple[int, int]] = collections.OrderedDict()
        self._bytes = 0

    def open(self, path: str) -> int:
        """A descriptor of a copy, which is made unless it exists. Raises as ``Store``."""
        with self._lock:
            if path in self._files:
                self._files.move_to_end(path)
                return _reopened(self._files[path][0])
        import tempfile  # only where segments are copied: it imports compressors

        root, name = place_of(path)
        try:
            copy, temporary = tempfile.mkstemp(prefix="framegate-")
        except FileNotFoundError as error:  # it is not the segment that is gone
            raise StoreError(f"copies of segments need a folder for temporary files that can be written, as TMPDIR names one: {error}") from None
        try:
            os.unlink(temporary)
            with open(copy, "wb", closefd=False) as file:
                file.writelines(store_at(root).chunks(name)[0])
            size, fd = os.fstat(copy).st_size, _reopened(copy)
        except BaseException:
            os.close(copy)
            raise
        with self._lock:
            self._forget(path)
            self._files[path] = (copy, size)
            self._bytes += size
            while len(self._files) > 1 and self._bytes > self._most:
                self._forget(next(iter(self._files)))
        return fd

    def forget(self, root: str) -> None:
        """Delete the copies of a log."""
        with self._lock:
            for path in [path for path in self._files if place_of(path)[0] == root]:
                self._forget(path)

    def _forget(self, path: str) -> None:
        if path in self._files:
            copy, size = self._files.pop(path)
            self._bytes -= size
            os.close(copy)


def _reopened(fd: int) -> int:
    """Another descriptor of a file without a name."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


COPIES: Final = Copies()  # of this process
