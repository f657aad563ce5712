"""framegate.proxy.server.standing_rows: standing actions at the start of a processor, and as changes."""

from tests.fakes.steered import Steered


def test_standing_actions_come_with_the_start_and_with_changes_and_replace_each_other() -> None:
    steered = Steered()
    pairs, rows = steered.world.relay.pairs, []
    for number, value in ((1, "10.0.0.0/8"), (2, "10.1.0.0/16"), (3, "10.0.0.1/8")):
        condition = {"field": "address", "value": value, "negated": False}
        row = {"number": number, "verb": "mute", "reason": "", "request_rate": 0, "response_rate": 0, "conditions": [condition]}
        answer = steered.ask("prepare", change={"standing": [row]})
        if number == 3:
            assert (answer["type"], "has host bits set" in answer["reason"]) == ("refused", True)
        else:
            assert (answer, steered.ask("commit")) == ({"type": "prepared"}, {"type": "committed"})
            rows = [row]
            assert [(item.number, item.is_for("l", "10.1.0.1:9", "p", "")) for item in pairs.standing] == [(number, True)]
    steered.world.close()
    again = Steered(start={"standing": rows})
    assert [item.number for item in again.world.relay.pairs.standing] == [2]
    again.world.close()
