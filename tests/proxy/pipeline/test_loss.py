from framegate.proxy.pipeline.loss import DataLossError, pairs_of
from framegate.proxy.tap.ledger import Ledger, StreamRecord


def test_a_loss_is_about_what_was_tapped_or_about_anything() -> None:
    ledger = Ledger(True, 2, "", {"a": StreamRecord(1, 5, [("main", "request")]), "b": StreamRecord(2, 6, [])})
    assert pairs_of(ledger, "a") == (("main", "request"),)
    assert pairs_of(ledger, "b") == pairs_of(ledger, "nobody") == ((None, "request"), (None, "response"))


def test_the_error_says_how_to_go_on() -> None:
    assert "--go-on" in str(DataLossError("stream a is gone"))
    assert str(DataLossError("stream a is gone")).startswith("stream a is gone. ")
