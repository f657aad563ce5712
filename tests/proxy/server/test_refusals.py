"""What rules about Kafka refuse, counted and collected for a row."""

from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.config.model import KafkaRules
from framegate.proxy.relay.counters import Counts
from framegate.proxy.relay.kafka_rules import KafkaRulesInForce, Refusal
from framegate.proxy.server.refusals import Refusals


def test_refusals_are_counted_and_the_row_is_of_the_first_since_the_last_one() -> None:
    counts = Counts(LISTENER_BLOCK)
    refusals = Refusals("l", KafkaRulesInForce(KafkaRules(report_only=True)), counts)
    assert refusals.take() is None
    for refusal in (Refusal(0, 1, "a\n" + "t" * 200, "p", "c\x1b"), Refusal(0, 1, "b", "q", ""), Refusal(999, 0, "", "p", "")):
        refusals.note(refusal)
    row = refusals.take()
    assert row is not None
    assert (row["listener"], row["count"], row["report_only"], row["principal"], row["api"], row["kind"]) == ("l", 3, True, "p", "Produce", "topic")
    assert (row["client_id"], row["name"][:4], len(row["name"])) == ("c\\x1b", "a\\nt", 102)
    assert refusals.take() is None
    places = [LISTENER_BLOCK.at("framegate.kafka.request.refused", api, "report_only") for api in ("Produce", "other")]
    assert [counts.cells[place] for place in places] == [2, 1]
    Refusals("l", KafkaRulesInForce(KafkaRules()), counts).note(Refusal(0, 1, "a", "p", ""))
    assert counts.cells[LISTENER_BLOCK.at("framegate.kafka.request.refused", "Produce", "topic")] == 1
    refusals.note(Refusal(999, 0, "", "p", ""))
    last = refusals.take()
    assert last is not None
    assert last["api"] == "api-999"
