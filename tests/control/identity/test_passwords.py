"""framegate.control.identity.passwords: what is stored, and whether it is the one."""

import pytest
from click import IntRange
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.control.cli.users import add
from framegate.control.identity import passwords
from framegate.control.identity.passwords import format_credential, is_password_of, keys_of, new_credentials, parse_credential
from framegate.proxy.auth.auth_requests import WantScramKeys
from framegate.proxy.auth.scram import HASHES, MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_SHA_256, SCRAM_SHA_512
from tests.fakes.cases import each_of
from tests.fakes.sasl_frames import ITERATIONS, SALT, keys, stored

GOOD = format_credential(stored(SCRAM_SHA_256))


@each_of("mechanism", HASHES)
def test_the_keys_are_those_of_the_formulas(mechanism: str) -> None:
    assert keys_of(mechanism, "pencil", SALT, ITERATIONS) == keys(WantScramKeys("a", mechanism, SALT, ITERATIONS))


def test_what_is_stored_is_salted_anew_for_each_mechanism_and_each_time() -> None:
    first, second = new_credentials("pencil", iterations=4096), new_credentials("pencil", iterations=4096)
    assert set(first) == set(HASHES)
    assert len({item.salt for made in (first, second) for item in made.values()}) == 4
    for mechanism, credential in first.items():
        assert (len(credential.salt), credential.iterations, credential.is_known) == (16, 4096, True)
        assert is_password_of(mechanism, credential, "pencil")
        for wrong in ("", "Pencil", "pencil ", "ü"):
            assert not is_password_of(mechanism, credential, wrong)


@given(st.sampled_from(sorted(HASHES)), st.binary(min_size=8, max_size=40), st.integers(MIN_ITERATIONS, MAX_ITERATIONS), st.data())
@settings(max_examples=50)
def test_the_text_form_comes_back(mechanism: str, salt: bytes, iterations: int, data: st.DataObject) -> None:
    size = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}[mechanism]
    stored_key, server_key = (data.draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    from framegate.proxy.auth.auth_requests import ScramCredential

    credential = ScramCredential(salt, iterations, stored_key, server_key)
    assert parse_credential(mechanism, format_credential(credential)) == credential


def test_kafkas_own_text_is_read() -> None:
    assert GOOD.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,")
    reordered = ",".join(sorted(GOOD.split(",")))
    assert parse_credential(SCRAM_SHA_256, reordered) == stored(SCRAM_SHA_256)


@each_of(
    ("text", "words"),
    [
        ("", "each once"),
        (GOOD.rpartition(",")[0], "each once"),
        (GOOD + ",x=y", "each once"),
        (GOOD + ",iterations=4096", "each once"),
        (GOOD.replace("salt=", "salz="), "each once"),
        (GOOD.replace("salt=W", "salt=!"), "salt is not base64"),
        (GOOD.replace("i=4096", "").replace("iterations=4096", "iterations=4095"), "iterations is 4095"),
        (GOOD.replace("iterations=4096", "iterations=16385"), "iterations is 16385"),
        (GOOD.replace("iterations=4096", "iterations=-1"), "iterations is no number"),
        (GOOD.replace("iterations=4096", "iterations=٤٠٩٦"), "iterations is no number"),
        (GOOD.replace("iterations=4096", "iterations=" + "9" * 5000), "iterations is no number"),
        (GOOD.replace("salt=W22ZaJ0SNY7soEsUEjb6gQ==", "salt=AAAA"), "salt has 3 bytes"),
        (format_credential(stored(SCRAM_SHA_512)), "stored_key has 64 bytes; those of SCRAM-SHA-256 have 32"),
    ],
)
def test_what_is_no_credential(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_credential(SCRAM_SHA_256, text)


def test_the_command_line_states_the_same_bounds() -> None:
    option = next(item for item in add.params if item.name == "iterations")
    assert isinstance(option.type, IntRange)
    assert (option.type.min, option.type.max, option.default) == (MIN_ITERATIONS, MAX_ITERATIONS, passwords.DEFAULT_ITERATIONS)
