"""framegate.proxy.auth.scram_messages: RFC 5802's grammar."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.mechanism import RefusalError
from framegate.proxy.auth.scram_messages import ClientFinal, ClientFirst, ServerFinal, ServerFirst
from tests.fakes.cases import each_of


@each_of(
    ("message", "user", "authorization", "extensions"),
    [
        (b"n,,n=user,r=abc", "user", "", ()),
        (b"n,a=admin,n=user,r=abc", "user", "admin", ()),
        (b"n,a=a=3Db=2Cc,n=x=2Cy=3D,r=abc", "x,y=", "a=b,c", ()),
        ("n,,n=a b Ü,r=abc".encode(), "a b Ü", "", ()),
        (b"n,,n=user,r=abc,ext=val1,other=a=b", "user", "", ("ext=val1", "other=a=b")),
        (b"n,,n=user,r=abc,tokenauth=true", "user", "", ("tokenauth=true",)),
    ],
)
def test_a_good_client_first(message: bytes, user: str, authorization: str, extensions: tuple[str, ...]) -> None:
    found = ClientFirst.read(message)
    assert (found.user, found.nonce, found.authorization, found.extensions) == (user, "abc", authorization, extensions)
    assert found.write() == message


@each_of(
    "message",
    [
        b"",
        b"n,,",
        b"n,n=user,r=abc",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,x=admin,n=user,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=a c",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,ext",
        b"n,,n=user,r=abc,1=2",
        b"n,,n=user,r=abc,ext=",
        b"n,,m=must,n=user,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=us\xffer,r=abc",
    ],
)
def test_what_is_no_client_first(message: bytes) -> None:
    with pytest.raises(RefusalError):
        ClientFirst.read(message)


def test_what_must_be_understood_is_not() -> None:
    for kind, message in ((ClientFirst, b"n,,m=x,n=u,r=a"), (ServerFirst, b"m=x,r=a,s=YQ==,i=1"), (ClientFinal, b"m=x,c=biws,r=a,p=YQ==")):
        with pytest.raises(RefusalError, match="mandatory extension"):
            kind.read(message)


def test_other_good_messages() -> None:
    final = ClientFinal.read(b"c=biws,r=abc,x=y,p=cHJvb2Y=")
    assert (final.binding, final.nonce, final.proof, final.unproven) == (b"n,,", "abc", b"proof", "c=biws,r=abc,x=y")
    assert ClientFinal.of("n,,", "abc").write(b"proof") == b"c=biws,r=abc,p=cHJvb2Y="
    found = ServerFirst.read(b"r=abc,s=c2FsdA==,i=4096")
    assert (found.nonce, found.salt, found.iterations) == ("abc", b"salt", 4096)
    assert ServerFirst.of("abc", b"salt", 4096) == found
    assert ServerFirst.read(b"r=abc,s=c2FsdA==,i=1,x=y").iterations == 1


@each_of(
    "message",
    [
        b"r=abc,s=c2FsdA==,i=0",
        b"r=abc,s=c2FsdA==,i=-1",
        b"r=abc,s=c2FsdA==,i=+1",
        b"r=abc,s=c2FsdA==,i=04096",
        b"r=abc,s=c2FsdA==,i=99999999999",
        b"r=abc,s=c2FsdA==,i=\xd9\xa1",
        b"r=abc,s=c2FsdA,i=4096",
        b"r=abc,s=c2Fs dA==,i=4096",
        b"r=abc,s=,i=4096",
        b"s=c2FsdA==,r=abc,i=4096",
        b"r=abc,i=4096",
        b"e=other-error",
        b"",
    ],
)
def test_what_is_no_server_first(message: bytes) -> None:
    with pytest.raises(RefusalError):
        ServerFirst.read(message)


def test_a_server_final_is_a_signature_or_an_error() -> None:
    assert ServerFinal.read(b"v=cHJvb2Y=") == ServerFinal(b"proof")
    assert ServerFinal.read(b"v=cHJvb2Y=,x=y") == ServerFinal(b"proof")
    assert ServerFinal.read(b"e=invalid-proof") == ServerFinal(error="invalid-proof")
    assert ServerFinal(b"proof").write() == b"v=cHJvb2Y="


@each_of(
    ("kind", "message"),
    [
        *(
            (ClientFinal, text)
            for text in (b"c=biws,r=abc", b"c=biws,p=cHJvb2Y=", b"r=abc,p=cHJvb2Y=", b"c=b!ws,r=abc,p=cHJvb2Y=", b"c=biws,r=abc,p=!")
        ),
        *((ServerFinal, text) for text in (b"v=!", b"e=", b"x=y", b"v=cHJvb2Y=,x")),
        *((kind, b"") for kind in (ClientFinal, ServerFinal)),
    ],
)
def test_what_is_no_final_message(kind: type[ClientFinal | ServerFinal], message: bytes) -> None:
    with pytest.raises(RefusalError):
        kind.read(message)


@given(st.binary(max_size=60), st.sampled_from([ClientFirst, ServerFirst, ClientFinal, ServerFinal]))
def test_garbage_is_refused_or_read(data: bytes, kind: type) -> None:
    with contextlib.suppress(RefusalError):
        assert isinstance(kind.read(data), kind)  # type: ignore[attr-defined]


def test_a_proof_is_in_no_repr() -> None:
    assert "canary" not in repr(ClientFinal.read(b"c=biws,r=abc,p=Y2FuYXJ5")) + repr(ServerFinal(b"canary"))
