"""``framegate users``: changes a users file on this machine, or the users of a listener of a running framegate. The password is read from the
terminal or standard input, never from the command line. Only salted hashes made here are stored or sent.
"""

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.options import Change, address_option, change_options, example, output_option
from framegate.control.cli.output import print_json, print_note, print_table

if TYPE_CHECKING:
    from framegate.proxy.auth.auth_requests import ScramCredential

F = TypeVar("F", bound=Callable[..., object])
_EXIT_USAGE, _EXIT_NOT_FOUND, _EXIT_CONFLICT = 2, 3, 4
_NO_CHANGE: Final = Change()
_STORED: Final = ("iterations", "salt", "stored_key", "server_key")
_SERVICE: Final = Service("user")
_COLUMNS: Final = ("NAME", "MECHANISMS", "ITERATIONS")


def _where(function: F) -> F:
    """``--file`` or ``--listener``, and ``--address``."""
    file = click.option("--file", "path", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="The users file on this machine.")
    listener = click.option("--listener", metavar="NAME", help="A listener of a running framegate, whose users file is used.")
    return file(listener(address_option(function)))


def _check_where(path: pathlib.Path | None, listener: str | None, change: Change = _NO_CHANGE) -> None:
    if (path is None) == (listener is None):
        raise click.UsageError("give one of --file and --listener")
    if change != _NO_CHANGE and listener is None:
        raise click.UsageError("--etag, --reason and --dry-run need --listener: a local file is changed at once, and changes are not logged")


@click.group(epilog=example("framegate users add alice --file users", "framegate users list --listener sasl"))
def users() -> None:
    """Add, remove and list users who log in with a password (SASL SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN).

    The users file has salted hashes of the passwords. Passwords themselves are neither stored nor sent. The file is replaced as a whole; a new file
    has the mode 0600. With --listener, a running framegate changes its own file, and the change is in force when the command returns.
    """


@users.command(
    epilog=example(
        "framegate users add alice --file users",
        "framegate users add alice --file users --replace < password",
        "framegate users add alice --listener sasl",
    )
)
@click.argument("name")
@_where
@click.option("--replace", is_flag=True, help="Replace the password of an existing user.")
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=8192,
    show_default=True,
    help="Hash iterations; more make it slower to guess a password.",
)
@change_options()
def add(name: str, path: pathlib.Path | None, listener: str | None, address: str, replace: bool, iterations: int, change: Change) -> None:
    """Add a user. Asks for the password; if standard input is not a terminal, it must hold the password as its only line."""
    from framegate.control.identity.passwords import new_credentials
    from framegate.control.identity.users_file import changing, name_fault

    _check_where(path, listener, change)
    if change.etag and not replace:
        raise click.UsageError("--etag needs --replace: a new user has none")
    fault = name_fault(name)
    if fault is not None:
        raise click.BadParameter(fault, param_hint="NAME")
    credentials = new_credentials(_password(), iterations=iterations)
    if path is None:
        _send(str(listener), name, credentials, address, change, replace=replace)
        return
    with _faults(path), changing(path) as file:
        file.add(name, credentials, replace=replace)


def _send(listener: str, name: str, credentials: "Mapping[str, ScramCredential]", address: str, change: Change, *, replace: bool) -> None:
    hashes = [
        {"mechanism": f"SCRAM_MECHANISM_{mechanism.removeprefix('SCRAM-').replace('-', '_')}", **{name: getattr(item, name) for name in _STORED}}
        for mechanism, item in credentials.items()
    ]
    fields: dict[str, Any] = {"listener": listener, "user": {"name": name, "credentials": hashes}}
    with calling(address, change=not change.dry_run) as channel:
        if replace:
            _SERVICE.change(channel, "UpdateUser", change, allow_missing=True, **fields)
        else:
            _SERVICE.change(channel, "CreateUser", change, **fields)


@users.command(epilog=example("framegate users remove alice --file users", "framegate users remove alice --listener sasl"))
@click.argument("name")
@_where
@change_options()
def remove(name: str, path: pathlib.Path | None, listener: str | None, address: str, change: Change) -> None:
    """Remove a user. The user's open connections end (`session_expired`), unless their listener has `close_revoked: false`."""
    from framegate.control.identity.users_file import changing, read_users

    _check_where(path, listener, change)
    if path is None:
        with calling(address, change=not change.dry_run) as channel:
            _SERVICE.change(channel, "DeleteUser", change, listener=listener, name=name)
        return
    with _faults(path):
        read_users(path)  # fails when there is no file
        with changing(path) as file:
            file.remove(name)


@users.command("list", epilog=example("framegate users list --file users", "framegate users list --listener sasl --output json"))
@_where
@output_option
def list_(path: pathlib.Path | None, listener: str | None, address: str, output: str) -> None:
    """List the users and their mechanisms. With --listener, list the users that are in force."""
    from framegate.control.identity.users_file import read_users

    _check_where(path, listener)
    if path is None:
        found = _listed(str(listener), address)
    else:
        with _faults(path):
            entries = read_users(path).users
        found = [(name, {kind: item.iterations for kind, item in entry.items()}) for name, entry in entries.items()]
    if output == "json":
        print_json([{"name": name, "mechanisms": mechanisms} for name, mechanisms in found])
        return
    print_table(_COLUMNS, ((name, " ".join(mechanisms), " ".join(map(str, mechanisms.values()))) for name, mechanisms in found))


def _listed(listener: str, address: str) -> list[tuple[str, dict[str, int]]]:
    """The users in force; prints a message when the present file is not in force."""
    with calling(address) as channel:
        answers = list(_SERVICE.pages(channel, "ListUsers", listener=listener))
    if answers[-1].error:
        print_note(f"the present users file is not in force: {answers[-1].error}")
    words = {number: f"SCRAM-{name.removeprefix('SCRAM_MECHANISM_').replace('_', '-')}" for name, number in _SERVICE.messages.ScramMechanism.items()}
    return [(user.name, {words[item.mechanism]: item.iterations for item in user.credentials}) for answer in answers for user in answer.users]


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            password = sys.stdin.read().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            password = ""
    if not password or not password.isprintable():
        raise click.UsageError("the password must be one line of printable text")
    return password


@contextlib.contextmanager
def _faults(path: pathlib.Path) -> Iterator[None]:
    from framegate.control.identity.users_file import UserExistsError, UsersFileError, UserUnknownError

    try:
        yield
    except UsersFileError as error:
        for line, reason in error.faults:
            print_note(f"{error.path}:{line}: {reason}")
        sys.exit(_EXIT_USAGE)
    except UserExistsError as error:
        _fail(f"{error}; use --replace to change the password", _EXIT_CONFLICT)
    except UserUnknownError as error:
        _fail(str(error), _EXIT_NOT_FOUND)
    except FileNotFoundError as error:
        _fail(f"{error.filename or path}: {error.strerror}", _EXIT_NOT_FOUND)
    except OSError as error:
        _fail(f"{error.filename or path}: {error.strerror}", 1)


def _fail(text: str, code: int) -> None:
    print_note(text)
    sys.exit(code)
