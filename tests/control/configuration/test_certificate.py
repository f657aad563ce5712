"""When a certificate begins and ends, against a library that reads all of it."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.configuration.certificate import not_after, validities

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime.datetime(1990, 1, 1)


def pem(end: datetime.datetime, begin: datetime.datetime = BEGIN) -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2068, 2070, 9999])
def test_it_is_what_the_certificate_says(year: int) -> None:
    text = pem(datetime.datetime(year, 12, 31, 23, 59, 59))
    assert not_after(text) == x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc.timestamp()


def test_the_first_of_a_chain_counts() -> None:
    first, second = pem(datetime.datetime(2030, 1, 1)), pem(datetime.datetime(2040, 1, 1))
    assert not_after("text before\n" + first + second) == not_after(first)


@pytest.mark.parametrize("text", ["", "nothing", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        not_after(text)


def test_every_certificate_of_a_chain_is_told_with_its_beginning() -> None:
    one = pem(datetime.datetime(2030, 1, 1), datetime.datetime(2020, 2, 3))
    other = pem(datetime.datetime(2060, 1, 1), datetime.datetime(2055, 2, 3))
    known = [x509.load_pem_x509_certificate(text.encode()) for text in (one, other)]
    wanted = [(item.not_valid_before_utc.timestamp(), item.not_valid_after_utc.timestamp()) for item in known]
    assert validities(f"{one}between\n{other}") == wanted
    assert validities(one + other, 1) == wanted[:1]
