"""Standing actions of operators, as they come over the link."""

from framegate.proxy.config.matching import address_matcher, text_matcher
from framegate.proxy.relay.standing import Condition, Standing
from framegate.proxy.server.rows import ConditionRow, StandingRow


def standing_of(rows: list[StandingRow]) -> list[Standing]:
    """The actions of rows, in order. Raises ValueError: a network that is not valid; control has looked."""
    return [
        Standing(row["number"], row["verb"], row["reason"], row["request_rate"], row["response_rate"], [*map(_condition, row["conditions"])])
        for row in rows
    ]


def _condition(row: ConditionRow) -> Condition:
    matches = address_matcher(row["value"]) if row["field"] == "address" else text_matcher(row["value"])
    return Condition(row["field"], matches, negated=row["negated"])
