"""framegate.control.asyncio_tls: asyncio without ssl, and the same asyncio with it later, in a process of its own."""

import subprocess
import sys
from pathlib import Path

from framegate.control.demo.certificates import create

CODE = """
import sys
from framegate.control import asyncio_tls
asyncio_tls.import_without_tls()
import asyncio
print("ssl" in sys.modules, "_ssl" in sys.modules)

async def echo(reader, writer):
    writer.write(await reader.readexactly(4))
    writer.close()

async def main(folder):
    asyncio_tls.load()
    asyncio_tls.load()
    import ssl
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.load_cert_chain(f"{folder}/server.crt", f"{folder}/server.key")
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=ours)
    theirs = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=theirs)
    writer.write(b"ping")
    print(await reader.read(), writer.get_extra_info("ssl_object").version())
    writer.close()
    server.close()

asyncio.run(main(sys.argv[1]))
"""


def test_asyncio_comes_without_ssl_and_has_tls_once_it_is_asked_for(tmp_path: Path) -> None:
    create(tmp_path)
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.splitlines(), done.returncode) == (["False False", "b'ping' TLSv1.3"], 0), done.stderr


def test_who_has_asyncio_already_keeps_it() -> None:
    code = (
        "import asyncio; from framegate.control import asyncio_tls; asyncio_tls.import_without_tls(); import ssl; print(asyncio.sslproto.ssl is ssl)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "True\n"
