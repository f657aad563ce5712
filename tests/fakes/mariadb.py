"""A real MariaDB server, and its own command line."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from framegate.control.demo.processes import ending_with_us
from tests.fakes.waiting import until

USER = "app"
PASSWORD = "a-secret-of-the-tests"
LARGEST = 64 << 20  # bytes of the largest message that server and clients take, of as many packets as it needs

SBIN = "/usr/sbin"  # where Debian has servers, and few people's path leads
SMALL = ("--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0")
SETUP = f"CREATE DATABASE peers;\nCREATE USER {USER}@localhost IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON peers.* TO {USER}@localhost;\n"
START_S = 30.0


def server_program() -> str | None:
    return shutil.which("mariadbd", path=os.pathsep.join((os.environ.get("PATH", os.defpath), SBIN)))


def missing_packages() -> list[str]:
    """What a test with MariaDB needs and this machine does not have, by the names of Debian's packages."""
    missing = [] if server_program() else ["mariadb-server-core"]
    return missing + ([] if shutil.which("mariadb") else ["mariadb-client-core"])


class MariaDB:
    """A server with a database ``peers`` and one user. It listens on a file only: who reaches it by a port came through a proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = folder / "server.sock"
        self.address = f"unix:{self._socket}"  # as an endpoint of an upstream
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "setup.sql").write_text(SETUP)
        common = ["--no-defaults", f"--datadir={self.folder / 'data'}", *SMALL, *(["--user=root"] if os.geteuid() == 0 else [])]
        install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run(install, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        server = server_program()
        assert server is not None, "look at missing_packages first"
        files = [f"--socket={self._socket}", f"--pid-file={self.folder / 'server.pid'}", f"--init-file={self.folder / 'setup.sql'}"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us([server, *common, *files, "--skip-networking", f"--max-allowed-packet={LARGEST}"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_until_ready(self) -> None:
        """It listens when it has done what ``setup.sql`` says."""
        process = self._process
        assert process is not None

        def is_ready() -> bool:
            assert process.poll() is None, (self.folder / "server.log").read_text()
            with socket.socket(socket.AF_UNIX) as sock:
                return sock.connect_ex(str(self._socket)) == 0

        until(is_ready, "MariaDB does not start", START_S)

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *failure: object) -> None:
        self._stop()


def sql(address: tuple[str, int], statements: str, *options: str) -> "subprocess.CompletedProcess[bytes]":
    """MariaDB's command line at a port: rows on standard output, a line for each, values between tabs, nothing escaped, no names."""
    command = ["mariadb", "--no-defaults", "--protocol=tcp", f"--host={address[0]}", f"--port={address[1]}", f"--user={USER}", "--database=peers"]
    command += ["--skip-ssl", f"--max-allowed-packet={LARGEST}", "--batch", "--raw", "--skip-column-names", *options]
    return subprocess.run(command, input=statements.encode(), capture_output=True, timeout=30, check=False, env={**os.environ, "MYSQL_PWD": PASSWORD})
