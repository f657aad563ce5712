"""Which Java runs Spark and the broker."""

import os
import re
import shutil
import subprocess
from typing import Final

__all__ = ["MINIMUM_VERSION", "find_java"]

MINIMUM_VERSION: Final = 17


def find_java() -> str | None:
    """The path of a Java runtime that is new enough: of ``JAVA_HOME`` when that is set, else of the path; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return None
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    return java if match is not None and int(match[1]) >= MINIMUM_VERSION else None
