"""Generate the stubs: ``python deploy/api_stubs.py [--output DIR]``, with grpcio-tools and mypy-protobuf installed.

The stubs are committed, so that an installation needs no tools; a test generates them again and compares. protoc writes them to
``framegate/control/v1``, the name by which they are imported; in the checkout that is the folder ``control/v1``.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Final

__all__ = ["generate", "main"]

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
PACKAGE: Final = "framegate/control/v1"


def _plugin(name: str) -> str:
    """The path of a protoc plugin: beside this interpreter, or on the PATH."""
    beside = pathlib.Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; pip install 'framegate[dev]' brings it")
    return found


def generate(output: pathlib.Path, source: pathlib.Path = ROOT / "proto") -> list[pathlib.Path]:
    """Write the stubs of every .proto file below ``source`` into ``output/control/v1``. Returns: The files written, relative to ``output``, sorted.
    Raises FileNotFoundError: a tool is missing. subprocess.CalledProcessError: protoc refused a file; it said why on stderr.
    """
    import grpc_tools  # type: ignore[import-untyped]

    protos = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.proto"))
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    folder = output / "control" / "v1"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", f"-I{well_known}",
            f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}", f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
            f"--python_out={temporary}", f"--grpc_python_out={temporary}", f"--mypy_out=quiet:{temporary}", f"--mypy_grpc_out=quiet:{temporary}",
            *protos,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        without = {f"{path.stem}_pb2_grpc" for path in source.rglob("*.proto") if "\nservice " not in path.read_text()}
        stubs = sorted(path for path in (pathlib.Path(temporary) / PACKAGE).iterdir() if path.stem not in without)
        return [pathlib.Path(shutil.copy(stub, folder)).relative_to(output) for stub in stubs]


def main() -> int:
    """The command line; prints what was written."""
    parser = argparse.ArgumentParser(description="Generate the gRPC stubs of proto/ into control/v1/.")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT, help="the folder that holds control/v1 (default: this checkout)")
    for path in generate(parser.parse_args().output):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
