"""framegate.proxy.cells.kafka_apis: the names are Kafka's, as users write them in tap rules."""

from framegate.proxy.cells import MEASURED_APIS
from framegate.proxy.config.selection import KAFKA_APIS, api_key


def test_every_api_of_the_list_is_one_of_kafkas() -> None:
    *names, last = MEASURED_APIS
    assert last == "other"
    assert len(set(names)) == len(names) == 23
    assert [KAFKA_APIS[api_key(name)] for name in names] == names
