"""The five mute states of a channel whose frames are handled one at a time, as Kafka has them: is a request of it under way, is it throttled.

They are no state of their own, but what the set of causes that mute the channel (``mute``) comes to, together with two facts: a response is
pending (from when the frame is whole to when what came of it is out), and the channel is throttled because a reply asked for that. What the table
does not have is a bug of ours, and ends that connection. It binds channels whose frames are handled one at a time, and no others.

Source: Kafka's KafkaChannel.ChannelMuteState (KIP-219).
"""

from typing import Final

from mypy_extensions import i64

from proxy.network.state_table import TableEnum, transition

__all__ = ["TRANSITIONS", "HandlerEvent", "HandlerState", "ResponseState"]


class HandlerState(TableEnum):
    """Whether a channel is read, as far as handlers decide that."""

    NOT_MUTED = "not_muted"
    MUTED = "muted"
    PENDING = "muted_and_response_pending"
    THROTTLED = "muted_and_throttled"
    THROTTLED_AND_PENDING = "muted_and_throttled_and_response_pending"


class HandlerEvent(TableEnum):
    """What happens to a channel."""

    MUTE = "mute"  # a cause is added
    UNMUTE = "unmute"  # the last cause would go away
    REQUEST_RECEIVED = "request_received"
    RESPONSE_SENT = "response_sent"  # or it is known that there is none
    THROTTLE_STARTED = "throttle_started"
    THROTTLE_ENDED = "throttle_ended"


NOT_MUTED: Final = HandlerState.NOT_MUTED
MUTED: Final = HandlerState.MUTED
PENDING: Final = HandlerState.PENDING
THROTTLED: Final = HandlerState.THROTTLED
THROTTLED_AND_PENDING: Final = HandlerState.THROTTLED_AND_PENDING

TRANSITIONS: Final[dict[tuple[HandlerState, HandlerEvent], HandlerState]] = {
    (NOT_MUTED, HandlerEvent.MUTE): MUTED,
    (NOT_MUTED, HandlerEvent.UNMUTE): NOT_MUTED,
    (MUTED, HandlerEvent.MUTE): MUTED,
    (MUTED, HandlerEvent.UNMUTE): NOT_MUTED,
    (MUTED, HandlerEvent.REQUEST_RECEIVED): PENDING,
    (PENDING, HandlerEvent.MUTE): PENDING,
    (PENDING, HandlerEvent.UNMUTE): PENDING,
    (PENDING, HandlerEvent.RESPONSE_SENT): MUTED,
    (PENDING, HandlerEvent.THROTTLE_STARTED): THROTTLED_AND_PENDING,
    (THROTTLED, HandlerEvent.MUTE): THROTTLED,
    (THROTTLED, HandlerEvent.UNMUTE): THROTTLED,
    (THROTTLED, HandlerEvent.THROTTLE_ENDED): MUTED,
    (THROTTLED_AND_PENDING, HandlerEvent.MUTE): THROTTLED_AND_PENDING,
    (THROTTLED_AND_PENDING, HandlerEvent.UNMUTE): THROTTLED_AND_PENDING,
    (THROTTLED_AND_PENDING, HandlerEvent.RESPONSE_SENT): THROTTLED,
    (THROTTLED_AND_PENDING, HandlerEvent.THROTTLE_ENDED): PENDING,
}


class ResponseState:
    """The two facts of one channel.

    Attributes:
        pending: a response is.
        throttled: a reply asked for it, and the time is not over.
    """

    def __init__(self) -> None:
        self.pending: bool = False
        self.throttled: bool = False

    def state(self, causes: i64) -> HandlerState:
        """What they come to, with the causes that mute the channel."""
        if self.pending:
            return THROTTLED_AND_PENDING if self.throttled else PENDING
        if self.throttled:
            return THROTTLED
        return MUTED if causes != 0 else NOT_MUTED

    def apply(self, event: HandlerEvent, causes: i64) -> HandlerState:
        """Something happens to a channel that is muted for ``causes``; the state that this leads to.

        Raises:
            IllegalTransitionError: it cannot happen now; nothing changes.
        """
        after = transition(TRANSITIONS, self.state(causes), event)
        self.pending = after is PENDING or after is THROTTLED_AND_PENDING
        self.throttled = after is THROTTLED or after is THROTTLED_AND_PENDING
        return after
