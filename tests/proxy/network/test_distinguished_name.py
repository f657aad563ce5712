"""proxy.network.distinguished_name: RFC 4514."""

import pytest

from proxy.network.distinguished_name import escape, format_name


def test_the_most_specific_part_comes_first() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "Example"),), (("commonName", "a"), ("userId", "7")), (("serialNumber", "1"),))
    assert format_name(subject) == "serialNumber=1,CN=a+UID=7,O=Example,C=DE"
    assert format_name(()) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        (" a ", "\\ a\\ "),
        ("#a#", "\\#a#"),
        ('a,b+c"d\\e<f>g;h', 'a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ("a\0b", "a\\00b"),
        ("ü", "ü"),
        ("", ""),
    ],
)
def test_special_characters_are_escaped(value: str, text: str) -> None:
    assert escape(value) == text
