"""framegate.proxy.config.matching: patterns for names, and for the addresses of clients."""

import pytest

from framegate.proxy.config.matching import address_matcher, text_matcher


def test_a_text_matches_as_a_whole_and_in_linear_time() -> None:
    for pattern, text, expected in (
        ("billing-*", "billing-7", True),
        ("billing-*", "a-billing-7", False),
        ("b?[12]", "bx2", True),
        ("b?[!12]", "bx2", False),
        ("", "", True),
        ("*", "a\nb", True),
        ("A", "a", False),
        ("a*" * 100 + "b", "a" * 256, False),
    ):
        assert text_matcher(pattern)(text) is expected, pattern


def test_a_peer_is_compared_without_port_and_zone() -> None:
    for value, peer, expected in (
        ("10.0.0.0/8", "10.1.2.3:9", True),
        ("10.1.2.3", "10.1.2.3:9", True),
        ("10.1.2.*", "10.1.2.3:9", True),
        ("10.1.2.3:9", "10.1.2.3:9", False),
        ("10.0.0.0/8", "[::ffff:10.0.0.1]:9", True),
        ("fe80::/10", "[fe80::1%eth0]:9", True),
        ("2001:db8::1", "[2001:db8::2]:9", False),
        ("0.0.0.0/0", "unix:/run/x", False),
        ("unix:/run/*", "unix:/run/x", True),
    ):
        assert address_matcher(value)(peer) is expected, (value, peer)
    with pytest.raises(ValueError, match=r"^not a network: 10.0.0.1/8 has host bits set$"):
        address_matcher("10.0.0.1/8")
