"""What happens, in one order: whoever learns of it publishes, and whoever wants to know subscribes.

    bus           gives each event its number, and the subscribers the event
    subscription  one subscriber's own queue, taken at its own pace
    backlog       a queue with a bound in events and bytes that says what it had to drop
    subscriber    what the bus gives its events to
    event         what passes: events, and the gaps that say which of them did not

Numbers begin with 1 at each start and have no holes, so that a subscriber sees that it missed nothing, or what. The last events are kept: who was
away for a moment goes on behind the last number that it saw.
"""

from control.events.backlog import MAX_BYTES, MAX_EVENTS
from control.events.bus import Bus
from control.events.event import Event, Gap, Line, Row
from control.events.subscriber import Subscriber
from control.events.subscription import Subscription

__all__ = ["MAX_BYTES", "MAX_EVENTS", "Bus", "Event", "Gap", "Line", "Row", "Subscriber", "Subscription"]
