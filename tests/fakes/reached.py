"""What objects keep in memory: every ``bytes`` that can be reached from them, counted once. Nothing is asked of what they say they hold."""

import gc
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

OTHERS = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, str)


def bytes_reached(*roots: object, without: tuple[object, ...] = ()) -> int:
    """Bytes of the distinct ``bytes`` objects behind ``roots``, through views, containers and our own objects alike. ``roots``: where to begin.
    ``without``: objects that are not gone into; nor are types, modules and functions.
    """
    seen = {id(item) for item in without}
    total = 0
    left = list(roots)
    while left:
        item = left.pop()
        if id(item) in seen or isinstance(item, OTHERS):
            continue
        seen.add(id(item))
        if isinstance(item, bytes):
            total += len(item)
        left += gc.get_referents(item)
    return total
