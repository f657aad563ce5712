import pytest

from proxy.server.store_rows import Store, listener_owner, pack_stores, read_stores, upstream_owner


def test_stores_arrive_as_they_were_and_what_several_have_is_sent_once() -> None:
    stores = {
        listener_owner("a"): Store(3, "f0", {"c": "certificate", "ca": "authority"}),
        upstream_owner("u"): Store(1, "", {"other/ca": "authority"}),
    }
    row = pack_stores(stores)
    assert row["contents"] == ["certificate", "authority"]
    assert read_stores(row) == stores
    assert list(stores) == ["listener/a", "upstream/u"]


def test_content_that_did_not_come_along_is_a_fault() -> None:
    row = pack_stores({"listener/a": Store(1, "", {"c": "x"})})
    row["contents"].clear()
    with pytest.raises(ValueError, match="files of listener/a was not sent along"):
        read_stores(row)


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Store(1, "", {"k": "secret"}))
