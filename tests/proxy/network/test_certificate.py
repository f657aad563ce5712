"""framegate.proxy.network.certificate: the texts are those of Java's ``X500Principal.getName()``, of the same certificates."""

import contextlib
import datetime
import os
import random
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from framegate.control.demo.processes import find_java
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.certificate import SEQUENCE, Element, elements, escape, format_name, only, subject_of
from tests.fakes.cases import each_of

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Attribute = x509.NameAttribute


def certificate_of(*rdns: list[Attribute[str]]) -> bytes:
    """A certificate with this subject, least specific part first."""
    issuer = x509.Name([Attribute(NameOID.COMMON_NAME, "authority")])
    builder = (
        x509.CertificateBuilder(issuer_name=issuer, public_key=KEY.public_key(), serial_number=1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    signed = builder.subject_name(x509.Name([x509.RelativeDistinguishedName(rdn) for rdn in rdns])).sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


def test_the_most_specific_part_comes_first() -> None:
    name, user = Attribute(NameOID.COMMON_NAME, "a"), Attribute(NameOID.USER_ID, "7")
    found = subject_of(certificate_of([Attribute(NameOID.COUNTRY_NAME, "DE")], [Attribute(NameOID.ORGANIZATION_NAME, "Example")], [name, user]))
    assert found == "CN=a+UID=7,O=Example,C=DE"
    assert subject_of(certificate_of()) == "", "a certificate without a subject"


@each_of(
    ("kind", "value", "text"),
    [
        (NameOID.DOMAIN_COMPONENT, "org", "DC=org"),
        (NameOID.LOCALITY_NAME, "M", "L=M"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "u", "OU=u"),
        (NameOID.STATE_OR_PROVINCE_NAME, "BY", "ST=BY"),
        (NameOID.STREET_ADDRESS, "s 1", "STREET=s 1"),
        (NameOID.SERIAL_NUMBER, "1", "2.5.4.5=#130131"),
        (NameOID.TITLE, "boss", "2.5.4.12=#0c04626f7373"),
        (NameOID.EMAIL_ADDRESS, "a@b.c", "1.2.840.113549.1.9.1=#16056140622e63"),
        (ObjectIdentifier("1.2.3.4.5"), "val", "1.2.3.4.5=#0c0376616c"),
        (ObjectIdentifier("2.999.3"), "val", "2.999.3=#0c0376616c"),
    ],
)
def test_attributes_have_names_or_numbers(kind: ObjectIdentifier, value: str, text: str) -> None:
    assert subject_of(certificate_of([Attribute(kind, value)])) == text


def der(tag: int, content: bytes) -> bytes:
    """An element of at most 65,535 bytes."""
    size = len(content)
    length = bytes((size,)) if size < 0x80 else bytes((0x81, size)) if size < 0x100 else b"\x82" + size.to_bytes(2, "big")
    return bytes((tag,)) + length + content


def attribute(tag: int, value: bytes) -> bytes:
    """A distinguished name of one common name."""
    return der(0x31, der(0x30, der(6, b"\x55\x04\x03") + der(tag, value)))


@each_of(
    ("tag", "value", "text"),
    [
        (0x0C, "ü日".encode(), "CN=ü日"),
        (0x13, b"a b", "CN=a b"),
        (0x14, b"\xfc", "CN=ü"),
        (0x1E, "ü日".encode("utf-16-be"), "CN=ü日"),
        (0x1A, b"vis", "CN=#1a03766973"),
    ],
)
def test_kinds_of_text(tag: int, value: bytes, text: str) -> None:
    assert format_name(attribute(tag, value)) == text


def test_a_subject_that_cannot_be_decoded_is_refused() -> None:
    for tag, value, words in (
        (0x0C, b"a\xffb", "CN of its subject is not utf-8: 61ff62"),
        (0x0C, b"\xed\xa0\x80", "not utf-8"),
        (0x13, b"\xc3\xbc", "CN of its subject is not ascii: c3bc"),
        (0x16, b"\x80", "not ascii"),
        (0x1B, b"\xff", "not ascii"),
        (0x1E, b"\0a\0", "not utf-16-be"),
        (0x1E, b"\xd8\x00\x00a", "not utf-16-be"),
    ):
        with pytest.raises(AuthenticationError, match=words):
            format_name(attribute(tag, value))
    good = attribute(0x0C, b"a")
    for place, byte, words in ((0, 0x30, "part of its subject"), (2, 0x31, "an attribute that is none"), (4, 4, "an attribute that is none")):
        with pytest.raises(AuthenticationError, match=words):
            format_name(good[:place] + bytes((byte,)) + good[place + 1 :])
    with pytest.raises(AuthenticationError, match="part of its subject"):
        format_name(b"\x31\x00")


@each_of("number", ["", "80550403", "55048003", "550483", "80"])
def test_a_number_that_is_written_in_another_way_is_none(number: str) -> None:
    """Or 2.5.4.3 could be written in many ways, which others may take for another attribute."""
    number_bytes = bytes.fromhex(number)
    data = der(0x31, der(0x30, der(6, number_bytes) + der(0x0C, b"a")))
    with pytest.raises(AuthenticationError, match="is no object identifier"):
        format_name(data)


JAVA = """
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
public class Names {
    public static void main(String[] words) throws IOException {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            String name = new X500Principal(HexFormat.of().parseHex(line)).getName();
            System.out.println(HexFormat.of().formatHex(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
"""
NUMBERS = ("550403", "550406", "550407", "550408", "550409", "55040a", "55040b", "0992268993f22c640119", "0992268993f22c640101", "550405", "2a0304")
TEXTS = (
    (0x0C, "utf-8"),
    (0x13, "ascii"),
    (0x14, "latin-1"),
    (0x16, "ascii"),
    (0x1B, "ascii"),
    (0x1E, "utf-16-be"),
    (0x1A, "ascii"),
    (0x1C, "utf-32-be"),
)
OLD_JAVA_READS_OTHERWISE = (0x14, 0x1E)
LETTERS = (
    "aZ09 -./:'()?",
    ',+"\\<>;=# \r\n\t\0*@_|',
    "\x80\xa0\xad\xe9\xff",
    "\u0130\u0301\u200b\u2028\u65e5\ufb01\ufeff\uffff",
    "\U0001f600\U0010ffff",
)
KNOWN = {"ascii": 2, "latin-1": 3, "utf-16-be": 4}


def random_name(draw: random.Random) -> tuple[bytes, set[int]]:
    """RDNs in DER form, with some that have several attributes; and the types of the values."""
    parts, tags = b"", set()
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        attributes = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            tag, charset = draw.choice(TEXTS)
            letters = LETTERS[: KNOWN.get(charset, 5)]
            text = "".join(draw.choice(draw.choice(letters)) for _ in range(draw.choice((0, 1, 2, 5, 20))))
            tags.add(tag)
            attributes.append(der(0x30, der(6, bytes.fromhex(draw.choice(NUMBERS))) + der(tag, text.encode(charset))))
        parts += der(0x31, b"".join(sorted(attributes)))
    return parts, tags


@pytest.mark.slow
def test_random_subjects_have_the_texts_that_java_gives_them(tmp_path: Path) -> None:
    """As many as FRAMEGATE_TEST_SUBJECTS says. A Java that reads T61String and BMPString as UTF-8, as 17 does, is not asked about these."""
    java = find_java()
    if java is None or not Path(java).resolve().with_name("javac").exists():
        pytest.skip("needs a JDK of 17 or newer")
    (tmp_path / "Names.java").write_text(JAVA)
    draw = random.Random(2253)
    made = [random_name(draw) for _ in range(int(os.environ.get("FRAMEGATE_TEST_SUBJECTS", "300")))]
    asked = [attribute(0x14, b"\xe9"), *(name for name, _ in made)]
    said = subprocess.run(
        [java, "Names.java"], cwd=tmp_path, input="".join(f"{der(0x30, name).hex()}\n" for name in asked), capture_output=True, text=True, check=True
    ).stdout.split("\n")
    first, *texts = (bytes.fromhex(line).decode() for line in said[: len(asked)])
    left_out = set() if first == "CN=\xe9" else set(OLD_JAVA_READS_OTHERWISE)
    compared = [(format_name(name), text) for (name, tags), text in zip(made, texts, strict=True) if not tags & left_out]
    assert [pair for pair in compared if pair[0] != pair[1]] == []
    assert len(compared) > len(made) / 5


@each_of(
    ("value", "text"),
    [
        ("a b", "a b"),
        (" a ", "\\ a\\ "),
        ("  ", "\\ \\ "),
        ("\rx\r", "\\\rx\\\r"),
        ("#a#", "\\#a\\#"),
        ('a,b+c"d\\e<f>g;h=i', 'a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i'),
        ("a\0b", "a\\00b"),
        ("a\tb", "a\tb"),
        ("ü", "ü"),
        ("", ""),
    ],
)
def test_special_characters_are_escaped(value: str, text: str) -> None:
    assert escape(value) == text


@given(st.integers(0, 400), st.integers(0, 255))
def test_what_is_no_certificate_is_refused_and_nothing_else_happens(place: int, value: int) -> None:
    data = bytearray(certificate_of([Attribute(NameOID.COMMON_NAME, "a")]))
    data[place % len(data)] = value
    with contextlib.suppress(AuthenticationError):
        assert isinstance(subject_of(bytes(data)), str)


@each_of("data", [b"", b"\x30\x00", b"\x30\x02\x30\x00", b"\x30\x0c\x30\x0a" + b"\x02\x00" * 5])
def test_what_has_no_place_for_a_subject(data: bytes) -> None:
    with pytest.raises(AuthenticationError, match="cannot be read"):
        subject_of(data)


@each_of("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_lengths_of_each_form(size: int) -> None:
    length = bytes((size,)) if size < 128 else bytes((0x80 | (size.bit_length() + 7) // 8,)) + size.to_bytes((size.bit_length() + 7) // 8, "big")
    one = b"\x30" + length + b"x" * size
    assert list(elements(one + b"\x05\x00")) == [Element(SEQUENCE, b"x" * size, one), Element(5, b"", b"\x05\x00")]
    assert only(one) == b"x" * size


@each_of("bad", [b"\x30", b"\x30\x05abc", b"\x30\x80ab", b"\x30\x85\0\0\0\0\1a", b"\x30\x82\1", b"\x1f\x01a"])
def test_what_is_no_element_is_refused(bad: bytes) -> None:
    with pytest.raises(AuthenticationError, match="cannot be read"):
        list(elements(bad))


@each_of("bad", [b"", b"\x30\x00\x30\x00", b"\x31\x00"])
def test_what_is_not_one_sequence_is_refused(bad: bytes) -> None:
    with pytest.raises(AuthenticationError, match="a SEQUENCE is missing"):
        only(bad)


@given(st.binary(max_size=60))
def test_any_bytes_are_elements_or_refused(data: bytes) -> None:
    with contextlib.suppress(AuthenticationError):
        assert b"".join(item.encoded for item in elements(data)) == data
