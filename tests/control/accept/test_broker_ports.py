"""Ports of brokers: by node id, or in order, stable, and freed ones reused last."""

from framegate.control.accept.broker_ports import BrokerPorts
from framegate.proxy.config.model import BrokersConfig


def test_by_node_id_the_first_port_is_that_of_node_0() -> None:
    ports = BrokerPorts(BrokersConfig(ports="9100-9102"))
    assert ports.assign([2, 0]) == {0: 9100, 2: 9102}
    assert ports.assign([1, 3, 2_147_483_647]) == {1: 9101}
    assert ports.assign([]) == {}


def test_in_order_a_broker_keeps_its_port_and_one_that_is_gone_loses_it_last() -> None:
    ports = BrokerPorts(BrokersConfig(ports="9100-9102", by="order"))
    assert ports.assign([70, 5]) == {5: 9100, 70: 9101}
    assert ports.assign([70]) == {70: 9101}
    assert ports.assign([70, 9]) == {70: 9101, 9: 9102}, "the port that was never given is given first"
    assert ports.assign([70, 5]) == {5: 9100, 70: 9101}, "who comes back finds its port"
    assert ports.assign([70, 8]) == {70: 9101, 8: 9102}, "9 is gone for longer than 5"
    assert ports.assign([70, 8, 9]) == {70: 9101, 8: 9102, 9: 9100}
    assert ports.assign([70, 8, 9, 1]) == {70: 9101, 8: 9102, 9: 9100}, "no port is left"
    assert ports.assign([8, 9, 1]) == {8: 9102, 9: 9100, 1: 9101}
