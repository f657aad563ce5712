"""The C programs, compiled on first use and again when their source changes; and throw-away certificates."""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the fakes of the tests sign certificates

from tests.fakes.certificates import Authority

SOURCES = Path(__file__).resolve().parent / "native"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra")


def build(name: str, cache: Path) -> Path:
    """The program `native/<name>.c`, compiled. Raises RuntimeError: it does not compile; the compiler's words are in the message."""
    sources = [SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources) + " ".join(FLAGS).encode()).hexdigest()[:12]
    program = cache / f"{name}-{digest}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["cc", *FLAGS, "-o", str(program), str(sources[0]), "-lssl", "-lcrypto"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name}.c does not compile (on Debian: apt-get install gcc libc6-dev libssl-dev):\n{done.stdout}")
    return program


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: the certificate, its key, both in one (HAProxy wants it so), and the authority's certificate."""

    certificate: Path
    key: Path
    both: Path
    authority: Path


def make_certificate(authority: Authority, name: str, *, with_rsa: bool = False) -> Certificate:
    """A certificate for localhost and 127.0.0.1, in files of its name beside the authority's. Its key: P-256, or RSA of 2048 bits."""
    certificate, key = map(Path, authority.leaf(name, key=rsa.generate_private_key(65537, 2048) if with_rsa else None))
    both = certificate.with_suffix(".pem")
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    both.chmod(0o600)
    return Certificate(certificate, key, both, authority.path)
