"""A folder of files as framegate finds it, and the ways in which others replace what is in it."""

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Way = Literal["link", "rename", "in place"]
WAYS: tuple[Way, ...] = ("link", "rename", "in place")


class Mounted:
    """Files by name. ``link``: as Kubernetes mounts a Secret or ConfigMap: names are links into ``..data``, a link that is turned to another folder,
    and the former one is removed.
    """

    def __init__(self, folder: Path, way: Way, files: Mapping[str, bytes]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._way = way
        self._numbers = itertools.count()
        self.replace(files)
        if way == "link":
            for name in files:
                (folder / name).symlink_to(Path("..data") / name)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def replace(self, files: Mapping[str, bytes]) -> None:
        """All of them at once where they are a link's, one after the other elsewhere."""
        if self._way == "link":
            self._turn(files)
            return
        for name, content in files.items():
            if self._way == "in place":
                (self.folder / name).write_bytes(content)
            else:
                temporary = self.folder / f".{name}.new"
                temporary.write_bytes(content)
                temporary.rename(self.folder / name)

    def _turn(self, files: Mapping[str, bytes]) -> None:
        data = self.folder / "..data"
        former = data.resolve() if data.is_symlink() else None
        fresh = self.folder / f"..{next(self._numbers)}"
        fresh.mkdir()
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        turned = self.folder / "..data_tmp"
        turned.symlink_to(fresh.name)
        os.replace(turned, data)
        if former is not None:
            shutil.rmtree(former)
