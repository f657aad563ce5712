"""An owner of an admission slot that only waits for its turn, and the words for the states of a frame."""

from typing import Final

from framegate.proxy.network.admission_slots import SlotOwner

GONE: Final = "gone"
BEGINS: Final = "begun"
WAITS: Final = "waiting"
IN: Final = "in"
SENDS: Final = "sending"


class Owner(SlotOwner):
    """Notes in ``log`` that its slot was granted."""

    def __init__(self, log: list["Owner"] | None = None) -> None:
        self.log = log
        self.raises = False

    def slot_granted(self) -> None:
        if self.log is not None:
            self.log.append(self)
        if self.raises:
            raise RuntimeError("a bug")

    def has_no_input(self) -> bool:
        return True

    def is_blocked(self) -> bool:
        return False
