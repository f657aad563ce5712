import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

from control.doctor.validity import DAY_S, days, ends_soon, weakness
from tests.fakes.certificates import Authority

YEAR_S = 365 * DAY_S


@pytest.mark.parametrize(
    ("life_s", "left_s", "soon"),
    [
        (YEAR_S, 14 * DAY_S - 1, True),
        (YEAR_S, 14 * DAY_S, False),
        (YEAR_S, 14 * DAY_S + 1, False),
        (DAY_S, DAY_S / 4 - 1, True),  # of a service mesh: made anew at half of its life
        (DAY_S, DAY_S / 4, False),
        (YEAR_S, -1, True),
    ],
)
def test_what_ends_soon_is_measured_by_its_life(life_s: float, left_s: float, soon: bool) -> None:
    now = 1e9
    assert ends_soon(now + left_s - life_s, now + left_s, now) is soon


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (3 * DAY_S, "ends in 3 days"),
        (47 * 3600, "ends in 47 hours"),
        (0, "ends in 0 hours"),
        (-3600, "ended 1 hour ago"),
        (-9 * DAY_S, "ended 9 days ago"),
    ],
)
def test_the_time_left_in_words(left_s: float, words: str) -> None:
    assert days(1e9 + left_s, 1e9) == words


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (rsa.generate_private_key(65537, 1024), "its RSA key has 1024 bits"),
        (rsa.generate_private_key(65537, 2048), None),
        (ec.generate_private_key(ec.SECP224R1()), "its key is on the curve secp224r1, of 224 bits"),
        (ec.generate_private_key(ec.SECP256R1()), None),
        (dsa.generate_private_key(2048), "DSA"),
    ],
)
def test_weak_keys(authority: Authority, key: rsa.RSAPrivateKey, words: str | None) -> None:
    found = weakness(x509.load_pem_x509_certificate(authority.leaf_pem("x", key=key)[0]))
    assert (found is None) == (words is None)
    assert words is None or words in (found or "")


class Signed:
    """As a certificate is read; ``cryptography`` makes none with SHA-1."""

    def __init__(self, hash_name: str, *, by_itself: bool = False) -> None:
        class Hash:
            name = hash_name

        self.signature_hash_algorithm = Hash()
        self.subject, self.issuer = "a", "a" if by_itself else "b"

    def public_key(self) -> object:
        return ec.generate_private_key(ec.SECP256R1()).public_key()


@pytest.mark.parametrize(
    ("name", "by_itself", "weak"), [("sha1", False, True), ("md5", False, True), ("sha256", False, False), ("sha1", True, False)]
)
def test_a_weak_signature_counts_but_on_a_root_of_its_own(name: str, by_itself: bool, weak: bool) -> None:
    assert (weakness(Signed(name, by_itself=by_itself)) is not None) is weak  # type: ignore[arg-type]
