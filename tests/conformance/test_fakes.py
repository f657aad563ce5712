"""Every fake of an interface has a suite that runs on the real thing, too."""

from framegate.control.steering.channels import Channels
from framegate.control.steering.configuration import Configuration
from framegate.control.steering.drain import Drain
from framegate.proxy.clock import Clock
from framegate.proxy.handler.reporter import Reporter
from framegate.proxy.handler.runtime import Runtime
from framegate.proxy.network.admission_slots import SlotOwner
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.timer import Timer
from framegate.proxy.relay.bucket import Waiter
from framegate.proxy.relay.pair import PairWatcher
from framegate.proxy.server.protocol import Request
from framegate.proxy.tap.segment import SegmentFiles
from framegate.proxy.tap.store import Store
from tests.fakes.clock import FakeClock
from tests.fakes.conformance import faults, implementations, suites


def test_every_fake_of_an_interface_is_proven_by_the_suite_of_the_real_one() -> None:
    """But for those without a behaviour of their own: they write down what they are told, do what a test says, or are the real ones with a fault."""
    found = implementations()
    assert FakeClock in found, "they are found"
    told = [
        item
        for item in found
        if {*item.__mro__}
        & {Clock, ChannelSink, PairWatcher, Timer, SlotOwner, Waiter, Request, Reporter, Runtime, Channels, Configuration, Drain, SegmentFiles, Store}
    ]
    assert faults(suites(), [item for item in found if item not in told]) == []
