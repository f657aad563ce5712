"""A tap rule that was never in a file, judged as one of a file is."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from control.configuration.document import document_of
from control.configuration.schema import convert, file_key
from control.configuration.tap_rules import apply_tap_rules
from proxy.config.model import TapRule

__all__ = ["tap_rule_faults"]

_KEY: Final = "tap.rules[0]."


def tap_rule_faults(rule: TapRule, listeners: Mapping[str, bool]) -> list[tuple[str, str]]:
    """What is wrong with a rule: each field's path, as in ``networks[0]``, and why, a sentence without it.

    Args:
        rule: its values have their fields' types. When it expires is not judged: it may have.
        listeners: by name, whether it speaks Kafka.
    """
    row = {file_key(name): value for name, value in dataclasses.asdict(rule).items() if name != "expires_ns"}
    document = document_of({"tap": {"rules": [row]}})
    apply_tap_rules(document, convert(document)["tap"], dict(listeners))
    return [(fault.key.removeprefix(_KEY), fault.reason) for fault in document.faults]
