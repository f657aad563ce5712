"""Events in one numbered sequence, for publishers and subscribers.

    bus           numbers events and delivers them
    subscription  the queue of one subscriber
    backlog       a queue bounded in events and bytes; reports what it dropped
    subscriber    the interface of subscribers
    event         events, and gaps that stand for dropped events

Numbers begin with 1 at each start and are consecutive, so a subscriber sees what it missed. The last events are kept: a subscriber that reconnects
continues after the last number that it saw.
"""

from framegate.control.events.backlog import MAX_BYTES, MAX_EVENTS
from framegate.control.events.bus import Bus
from framegate.control.events.event import Event, Gap, Line, Row
from framegate.control.events.subscriber import Subscriber
from framegate.control.events.subscription import Subscription

__all__ = ["MAX_BYTES", "MAX_EVENTS", "Bus", "Event", "Gap", "Line", "Row", "Subscriber", "Subscription"]
