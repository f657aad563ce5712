"""Events in one numbered sequence, for publishers and subscribers.

    bus           numbers events, keeps the last ones and delivers them
    subscription  the bounded queue of one subscriber
    event         events, gaps that stand for dropped events, and the interface of subscribers

Numbers begin with 1 at each start and are consecutive, so a subscriber sees what it missed. The last events are kept: a subscriber that reconnects
continues after the last number that it saw.
"""

from framegate.control.events.bus import Bus
from framegate.control.events.event import Event, Gap, Line, Row, Subscriber
from framegate.control.events.subscription import Subscription

__all__ = ["Bus", "Event", "Gap", "Line", "Row", "Subscriber", "Subscription"]
