"""Sets single cells of a fake plane's processors."""

from array import array

from tests.fakes.plane import FakePlane


def fill(plane: FakePlane, slot: int, values: dict[tuple[str, ...], int | list[int]]) -> None:
    """Publish an image that holds these values, by metric name and attribute values, and zeros."""
    image = array("q", bytes(8 * plane.layout.count))
    for (name, *attributes), value in values.items():
        index = plane.layout.index(name, *attributes)
        for offset, number in enumerate(value if isinstance(value, list) else [value]):
            image[index + offset] = number
    plane.writers[slot].publish(image)
