import pathlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.configuration.files import authority_fault, identity_fault, readable_fault
from control.demo.certificates import create


def test_a_certificate_and_its_key_fit(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    assert identity_fault(str(made.server), str(made.server_key)) is None
    assert authority_fault(str(made.ca)) is None


def test_the_key_of_another_certificate_is_named(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    assert identity_fault(str(made.server), str(made.client_key)) == ("key", "is not the key of the certificate server.crt")


def test_files_that_are_no_pem_are_told_apart(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    certificate = identity_fault(str(rubbish), str(made.server_key))
    key = identity_fault(str(made.server), str(rubbish))
    assert certificate is not None
    assert certificate[0] == "certificate"
    assert "no certificate in PEM form" in certificate[1]
    assert key is not None
    assert key[0] == "key"
    assert "no private key in PEM form" in key[1]


def test_an_encrypted_key_is_refused_without_asking_anybody(tmp_path: pathlib.Path) -> None:
    made = create(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "locked").write_bytes(locked)
    fault = identity_fault(str(made.server), str(tmp_path / "locked"))
    assert fault == ("key", "is encrypted; framegate reads keys without a password only")


def test_a_file_that_cannot_be_read_says_why(tmp_path: pathlib.Path) -> None:
    assert readable_fault(str(tmp_path / "none")) == "cannot be read: No such file or directory"
    assert readable_fault(str(tmp_path)) == "cannot be read: Is a directory"
