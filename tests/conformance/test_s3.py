"""Our S3 server answers the requests of our clients as moto's does."""

import contextlib
import http.client
import re
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.fakes.s3 import BUCKET, S3

pytestmark = [pytest.mark.slow, pytest.mark.extended]
Answer = tuple[int, str | None, str | None, bytes, list[str]]
KEYS = ("a/1", "a/2", "a/b/3", "a/b/4", "ab", "ä & <b>/5")
GET = ("GET", f"/{BUCKET}/a/b/4")
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261129/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}
TAG = '"8cbb2a1c66bd08a86d3f9ac1e9c7ea1b"'  # of nothing
REQUESTS = [
    *(("PUT", f"/{BUCKET}/{urllib.parse.quote(key)}", {}, key.encode()) for key in KEYS),
    ("PUT", f"/{BUCKET}/a/1", {"If-None-Match": "*"}, b"new"),
    ("PUT", f"/{BUCKET}/new", {"If-None-Match": "*"}, b"new"),
    ("PUT", f"/{BUCKET}/new", {"If-Match": TAG}, b"newer"),
    ("PUT", f"/{BUCKET}/new", {"If-Match": '"22af645d1859cb5ca6da0c484f1f37ea"'}, b"newer"),
    ("PUT", f"/{BUCKET}/nowhere", {"If-Match": TAG}, b"newer"),
    ("PUT", "/nowhere/key", {}, b"new"),
    ("GET", f"/{BUCKET}/new", {}, b""),
    ("HEAD", f"/{BUCKET}/new", {}, b""),
    ("GET", f"/{BUCKET}/nowhere", {}, b""),
    ("HEAD", f"/{BUCKET}/nowhere", {}, b""),
    ("GET", f"/{BUCKET}/new", {"If-None-Match": TAG}, b""),
    *((*GET, {"Range": f"bytes={text}"}, b"") for text in ("0-1", "2-2", "1-", "-2", "2-99", "5-6")),
    *(
        ("GET", f"/{BUCKET}?list-type=2&{text}", {}, b"")
        for text in ("prefix=", "prefix=a%2F", "prefix=a%2F&delimiter=%2F", "delimiter=%2F", "max-keys=3")
    ),
    *(("GET", f"/{BUCKET}?list-type=2&prefix=a%2F&start-after={text}", {}, b"") for text in ("a%2F1", "a%2Fb%2F4", "a")),
    ("POST", f"/{BUCKET}?delete", {}, b"<Delete><Object><Key>a/1</Key></Object><Object><Key>nowhere</Key></Object></Delete>"),
    ("GET", f"/{BUCKET}?list-type=2&prefix=", {}, b""),
]


@pytest.fixture
def clients() -> Iterator[list[http.client.HTTPConnection]]:
    """Of our server and of moto's, each with an empty bucket."""
    from moto.server import ThreadedMotoServer

    ours, theirs = S3(), ThreadedMotoServer(port=0, verbose=False)
    theirs.start()
    try:
        with contextlib.ExitStack() as stack:
            addresses = (ours.endpoint.removeprefix("http://"), "{}:{}".format(*theirs.get_host_and_port()))
            made = [stack.enter_context(contextlib.closing(http.client.HTTPConnection(address))) for address in addresses]
            asked(made[1], "POST", "/moto-api/reset", {}, b"")
            asked(made[1], "PUT", f"/{BUCKET}", {}, b"")
            yield made
    finally:
        ours.close()
        theirs.stop()


def asked(connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    connection.request(method, path, body, {**SIGNED, **headers})
    answer = connection.getresponse()
    content = answer.read()
    is_xml = content.startswith(b"<")
    names = "Key|Prefix|Size|IsTruncated" if answer.status == 200 else "Code"
    listed = re.findall(f"<(?:{names})>[^<]+<", content.decode()) if is_xml else []
    return answer.status, answer.getheader("ETag"), answer.getheader("Content-Range"), b"" if is_xml else content, sorted(listed)


def test_each_request_has_the_same_answer(clients: list[http.client.HTTPConnection]) -> None:
    ours, theirs = clients
    different = [(request, one, other) for request in REQUESTS if (one := asked(ours, *request)) != (other := asked(theirs, *request))]
    assert different == []


def test_a_list_is_read_in_pages(clients: list[http.client.HTTPConnection]) -> None:
    found = []
    for connection in clients:
        for request in REQUESTS[: len(KEYS)]:
            asked(connection, *request)
        pages, more = [], ""
        while not pages or more:
            connection.request("GET", f"/{BUCKET}?list-type=2&delimiter=%2F&max-keys=1{more}", headers=SIGNED)
            text = connection.getresponse().read().decode()
            token = re.search("<NextContinuationToken>(.*?)<", text)
            more = f"&continuation-token={urllib.parse.quote_plus(token[1])}" if token else ""
            pages.append(re.findall("<(?:Key|Prefix)>[^<]+<", text))
        found.append(pages)
    assert found[0] == found[1]
    assert len(found[0]) == 3
