"""From ``package.module:name`` to a handler that can be called."""

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

from framegate.proxy.relay.handler_wire import DIRECTIONS, HandlerFacts


class LoadError(Exception):
    """The name is not that of a handler."""


class LoadedHandler:
    """A handler that can be called."""

    def __init__(self, name: str, target: Any) -> None:
        self.name: Final = name  # as configured, ``package.module:name``
        self.target: Final = target  # the object that may have start and stop; listeners that name the same object share it
        self.handle: Final[Any] = getattr(target, "handle", target)  # takes a frame and a context; with ``is_async`` it returns a coroutine
        self.is_async: Final = is_async(self.handle)
        directions = getattr(target, "directions", DIRECTIONS)
        self.directions: Final[tuple[str, ...]] = (directions,) if isinstance(directions, str) else tuple(directions)
        self.description: Final = (inspect.getdoc(target) or "").strip().partition("\n")[0]  # the first line of its docstring

    def facts(self) -> HandlerFacts:
        return HandlerFacts(directions=list(self.directions))

    def fault(self) -> str:
        """Why it cannot be used; empty: it can."""
        if not callable(self.handle):
            return "is neither a function nor has it a handle to call"
        try:
            inspect.signature(self.handle).bind(b"", None)
        except TypeError as error:
            return f"cannot be called with a frame and a context: {error}"
        except ValueError:
            pass  # a function of C, whose signature is not known
        for name in ("start", "stop"):
            method = getattr(self.target, name, None)
            if method is not None and not callable(method):
                return f"has a {name} that cannot be called"
        if not self.directions or any(word not in DIRECTIONS for word in self.directions):
            return f"has directions {self.directions!r:.80}, which are not of {DIRECTIONS}"
        return ""


def is_async(handle: object) -> bool:
    """Whether a call returns a coroutine: of a function, a method, a partial, or an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(getattr(handle, "__call__", None))  # noqa: B004 (not whether it can be)


def extend_path(folders: Sequence[str]) -> None:
    """Append folders to ``sys.path``, in their order. They come last, so that their files do not replace modules of framegate."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def load(name: str) -> LoadedHandler:
    """Import a handler; a class is called without arguments. Raises LoadError: the text says what is wrong, and, for an exception in users' code,
    where.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise LoadError(f"{name}: a handler is named package.module:name")
    _accept_old_name()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise LoadError(f"{name}: there is no module {error.name} on the path ({', '.join(sys.path)})") from error
        raise LoadError(f"{name}: {error_line(error)}") from error
    except BaseException as error:  # a module may even exit
        raise LoadError(f"{name}: {error_line(error)}") from error
    try:
        target: Any = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise LoadError(f"{name}: {error}") from error
    try:
        found = LoadedHandler(name, target() if isinstance(target, type) else target)
    except BaseException as error:
        raise LoadError(f"{name}: {error_line(error)}") from error
    fault = found.fault()
    if fault:
        raise LoadError(f"{name} {fault}")
    return found


def _accept_old_name() -> None:
    """Let ``proxy.handler`` stand for ``framegate.proxy.handler``, as it was named before 0.2, unless a package ``proxy`` is installed."""
    if "proxy" not in sys.modules and importlib.util.find_spec("proxy") is None:
        for name in ("proxy", "proxy.handler"):
            sys.modules[name] = importlib.import_module(f"framegate.{name}")


def error_line(error: BaseException) -> str:
    """An error in one line, with the last line of code outside of this module and the import machinery."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen") and frame.filename != __file__]
    place = [frame for frame in frames if "importlib" not in frame.filename][-1:]
    return f"{text} ({place[0].filename}:{place[0].lineno})" if place else text
