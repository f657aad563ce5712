"""Events in one numbered sequence, for publishers and subscribers.

Numbers begin with 1 at each start and are consecutive, so a subscriber sees what it missed. The last events are kept: a subscriber that reconnects
continues after the last number that it saw.
"""

from framegate.control.events.bus import Bus
from framegate.control.events.event import Event, EventLines, Gap, Row, Subscriber
from framegate.control.events.subscription import Subscription

__all__ = ["Bus", "Event", "EventLines", "Gap", "Row", "Subscriber", "Subscription"]
