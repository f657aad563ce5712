"""Changes of a processor's configuration, as control sends them."""

import collections
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from framegate.proxy.config.limits import LimitsConfig, ListenerLimits
from framegate.proxy.config.model import KafkaRules, ProxyConfig, TapRule, difference_to_wire
from framegate.proxy.server.settings import Settings


def edited(
    config: ProxyConfig,
    *,
    sizes: Mapping[str, int] | None = None,
    limits: Mapping[str, ListenerLimits] | None = None,
    node: LimitsConfig | None = None,
    kafka: Mapping[str, KafkaRules] | None = None,
    rules: tuple[TapRule, ...] | None = None,
) -> ProxyConfig:
    given = {"max_receive_size": sizes or {}, "limits": limits or {}, "kafka": kafka or {}}
    listeners = tuple(
        dataclasses.replace(item, **{key: values[item.name] for key, values in given.items() if item.name in values}) for item in config.listeners
    )
    tap = config.tap if rules is None or config.tap is None else dataclasses.replace(config.tap, rules=rules)
    return dataclasses.replace(config, listeners=listeners, limits=config.limits if node is None else node, tap=tap)


def prepare(settings: Settings, number: int, asked: dict[str, Any]) -> None:
    """Prepare a change at once."""
    collections.deque(settings.prepare(number, asked), maxlen=0)


def change_to(before: ProxyConfig, after: ProxyConfig, **further: Any) -> dict[str, Any]:
    """The change from one configuration to another, as it comes over the link."""
    made: dict[str, Any] = json.loads(json.dumps({"config": difference_to_wire(before, after), **further}))
    return made


def change(config: ProxyConfig, further: Mapping[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    return change_to(config, edited(config, **values), **(further or {}))
