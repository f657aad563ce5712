import pathlib
from typing import Any

from control.configuration.paths import make_absolute


def test_every_relative_path_starts_at_the_folder() -> None:
    values: dict[str, Any] = {
        "admin": {"address": "unix:admin.sock"},
        "listeners": [{"address": "unix:l.sock", "tls": {"certificate": "a.crt", "key": "/k", "client_ca": None}}, {"address": "0.0.0.0:1"}],
        "upstreams": [{"endpoints": ["unix:u.sock", "host:1", 3], "tls": {"ca": "ca.crt"}}],
        "tap": {"directory": "var/tap"},
    }
    make_absolute(values, pathlib.Path("/etc/fg"))
    assert values == {
        "admin": {"address": "unix:/etc/fg/admin.sock"},
        "listeners": [
            {"address": "unix:/etc/fg/l.sock", "tls": {"certificate": "/etc/fg/a.crt", "key": "/k", "client_ca": None}},
            {"address": "0.0.0.0:1"},
        ],
        "upstreams": [{"endpoints": ["unix:/etc/fg/u.sock", "host:1", 3], "tls": {"ca": "/etc/fg/ca.crt"}}],
        "tap": {"directory": "/etc/fg/var/tap"},
        "handlers": {"path": ["/etc/fg"]},
    }


def test_what_is_missing_or_of_the_wrong_kind_is_left_alone() -> None:
    values: dict[str, Any] = {"listeners": "no list", "upstreams": [3], "tap": None, "admin": "word"}
    make_absolute(values, pathlib.Path("/x"))
    assert values == {"listeners": "no list", "upstreams": [3], "tap": None, "admin": "word", "handlers": {"path": ["/x"]}}


def test_a_default_that_is_a_path_starts_there_too_and_what_is_given_takes_its_place() -> None:
    for given, path in (({"queue": 5}, ["/x"]), ({"path": ["a", "/b"]}, ["/x/a", "/b"]), ({"path": []}, [])):
        values: dict[str, Any] = {"handlers": given}
        make_absolute(values, pathlib.Path("/x"))
        assert values["handlers"]["path"] == path
