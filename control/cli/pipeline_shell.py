"""The prompt of ``framegate pipeline shell``: queries of several lines, and a few commands. Editing and history are readline's."""

import cmd
import contextlib
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any, Final

from framegate.control.cli.output import print_note
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
from framegate.proxy.pipeline.queries import queries
from framegate.proxy.pipeline.sql import QueryError, open_tables

_NAMES: Final = sorted({*TABLE_SCHEMAS, *queries("datafusion")})


class Shell(cmd.Cmd):
    """The prompt."""

    def __init__(self, tables: pathlib.Path | str, show: Callable[[Any], None]) -> None:
        """``show``: prints the rows of an Arrow table. Raises TableError: as ``open_tables``."""
        super().__init__()
        self._tables, self._show = tables, show
        self._ask = open_tables(tables)
        self._begun = ""  # of a query that has no semicolon yet
        self.use_rawinput = sys.stdin.isatty()
        with contextlib.suppress(ImportError):  # Python may be without it
            importlib.import_module("readline")
        self.prompt = "framegate> " if self.use_rawinput else ""

    def run(self) -> None:
        """Until ``exit`` or the end of the input. Ctrl-C drops what was typed."""
        while True:
            try:
                return self.cmdloop()
            except KeyboardInterrupt:
                self._begun = ""
                print()

    def onecmd(self, line: str) -> bool:
        """A line: the next one of a query, or a command."""
        if line == "EOF":
            return True
        query = f"{self._begun}\n{line}".strip()
        if not self._begun and query.rstrip(";").split(" ")[0] in ("", "help", "tables", "columns", "refresh", "exit", "quit"):
            return bool(super().onecmd(query.rstrip(";")))
        self._begun = "" if query.endswith(";") else query
        if not self._begun:
            self._run(query.rstrip(";"))
        return False

    def _run(self, query: str, show: Callable[[Any], None] | None = None) -> None:
        try:
            (show or self._show)(self._ask(query))
        except QueryError as error:
            print_note(str(error))

    def emptyline(self) -> bool:
        return False

    def completenames(self, text: str, *_: Any) -> list[str]:
        return [name for name in _NAMES if name.startswith(text)]

    completedefault = completenames

    def do_tables(self, _: str) -> None:
        """The names of the tables and views."""
        print(*_NAMES, sep="\n")

    def do_columns(self, name: str) -> None:
        """The columns of a table or view, and their types: columns NAME."""
        self._run(f'SELECT * FROM "{name}" LIMIT 0', lambda rows: print(*(f"{field.name}  {field.type}" for field in rows.schema), sep="\n"))

    def do_refresh(self, _: str) -> None:
        """See the batches that came since."""
        self._ask = open_tables(self._tables)

    def do_exit(self, _: str) -> bool:
        """End; Ctrl-D does the same."""
        return True

    do_quit = do_exit
