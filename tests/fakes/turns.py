"""Who waits for a turn, and nothing else; and the words for where a frame is."""

from typing import Final

from proxy.network.turns import TurnOwner

GONE: Final = "gone"
BEGINS: Final = "begun"
WAITS: Final = "waiting"
IN: Final = "in"
SENDS: Final = "sending"


class Owner(TurnOwner):
    """Writes down that it was told."""

    def __init__(self, log: list["Owner"] | None = None) -> None:
        self.log = log
        self.raises = False

    def turn_given(self) -> None:
        if self.log is not None:
            self.log.append(self)
        if self.raises:
            raise RuntimeError("a bug")

    def is_dry(self) -> bool:
        return True

    def is_held_up(self) -> bool:
        return False
