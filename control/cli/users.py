"""``framegate users``: the file of users on this machine. A password comes from the terminal or from standard input, never from the command line."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

import click

from control.cli.options import example, output_option

__all__ = ["users"]

_FILE = click.option("--file", "path", type=click.Path(dir_okay=False, path_type=pathlib.Path), required=True, help="The file of users.")
_EXIT_USAGE, _EXIT_NOT_FOUND, _EXIT_CONFLICT = 2, 3, 4


@click.group(epilog=example("framegate users add alice --file users", "framegate users list --file users"))
def users() -> None:
    """Who may come in with a password: a file with salted entries for SCRAM-SHA-256 and SCRAM-SHA-512, which PLAIN is checked against, too.

    No clear password is stored. The file is replaced as a whole; its mode is 0600.
    """


@users.command(epilog=example("framegate users add alice --file users", "framegate users add alice --file users --replace < password"))
@click.argument("name")
@_FILE
@click.option("--replace", is_flag=True, help="Give a user that there is a new password.")
@click.option("--iterations", type=click.IntRange(4096, 16384), default=8192, show_default=True, help="How much it costs to try a password.")
def add(name: str, path: pathlib.Path, replace: bool, iterations: int) -> None:
    """Add a user. Asks for the password, or reads one line of standard input when that is no terminal."""
    from control.identity.passwords import new_credentials
    from control.identity.users_file import changing, name_fault

    fault = name_fault(name)
    if fault is not None:
        raise click.BadParameter(fault, param_hint="NAME")
    credentials = new_credentials(_password(), iterations=iterations)
    with _faults(), changing(path) as file:
        file.add(name, credentials, replace=replace)


@users.command(epilog=example("framegate users remove alice --file users"))
@click.argument("name")
@_FILE
def remove(name: str, path: pathlib.Path) -> None:
    """Remove a user. Connections that are open stay open."""
    from control.identity.users_file import changing, read_users

    with _faults():
        read_users(path)  # there must be one: none is made to remove somebody from
        with changing(path) as file:
            file.remove(name)


@users.command("list", epilog=example("framegate users list --file users", "framegate users list --file users --output json"))
@_FILE
@output_option
def list_(path: pathlib.Path, output: str) -> None:
    """List the users, with the mechanisms that each has an entry for."""
    from control.cli.output import print_json, print_table
    from control.identity.users_file import read_users

    with _faults():
        found = read_users(path).users
    if output == "json":
        print_json([{"name": name, "mechanisms": {kind: item.iterations for kind, item in entry.items()}} for name, entry in found.items()])
        return
    rows = ((name, " ".join(entry), " ".join(str(item.iterations) for item in entry.values())) for name, entry in found.items())
    print_table(("NAME", "MECHANISMS", "ITERATIONS"), rows)


def _password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            password = ""
    if not password or not password.isprintable():
        raise click.UsageError("the password is empty, or not one line of text")
    return password


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    from control.identity.users_file import UserExistsError, UsersFileError, UserUnknownError

    try:
        yield
    except UsersFileError as error:
        for line, reason in error.faults:
            click.echo(f"framegate: {error.path}:{line}: {reason}", err=True)
        sys.exit(_EXIT_USAGE)
    except UserExistsError as error:
        _fail(f"{error}; --replace gives it a new password", _EXIT_CONFLICT)
    except UserUnknownError as error:
        _fail(str(error), _EXIT_NOT_FOUND)
    except FileNotFoundError as error:
        _fail(f"{error.filename}: {error.strerror}", _EXIT_NOT_FOUND)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", 1)


def _fail(text: str, code: int) -> None:
    click.echo(f"framegate: {text}", err=True)
    sys.exit(code)
