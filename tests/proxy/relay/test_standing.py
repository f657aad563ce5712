"""framegate.proxy.relay.standing: for which clients a standing action is. What it does to them: test_administration."""

from framegate.proxy.relay.standing import Condition, Standing


def test_all_conditions_must_hold() -> None:
    facts = {"listener": "a", "address": "1.2.3.4:5", "principal": "alice", "client_id": "c"}
    for field, value in facts.items():
        for asked, negated, expected in ((value, False, True), (value, True, False), ("x", False, False), ("x", True, True)):
            conditions = [Condition(field, asked.__eq__, negated=negated), Condition("listener", "a".__eq__, negated=False)]
            standing = Standing(1, "mute", "", 0, 0, conditions)
            assert standing.is_for(*facts.values()) is expected
            assert standing.by_client is (field == "client_id")
    assert Standing(1, "mute", "", 0, 0, []).is_for("", "", "", "")
