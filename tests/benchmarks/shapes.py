"""The shapes of load that are compared, and the protocols they are driven over."""

from dataclasses import dataclass

UNITS = ((1 << 20, "MB"), (1 << 10, "KiB"), (1000, "KB"))


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of traffic."""

    name: str  # as `--shapes` takes it
    size: int  # bytes of a frame's body; its header is 4 bytes more
    in_flight: int  # frames that each connection keeps under way
    connections: int  # how many

    @property
    def title(self) -> str:
        """For tables: `64 KiB × 4 × 10`."""
        number, word = next(((self.size // unit, word) for unit, word in UNITS if self.size % unit == 0), (self.size, "B"))
        return f"{number} {word} × {self.in_flight} × {self.connections}"


SHAPES = (
    Shape("100x1", 100, 1, 50),
    Shape("100x64", 100, 64, 50),
    Shape("1k", 1000, 8, 50),
    Shape("64k", 64 * 1024, 4, 10),
    Shape("1m", 1 << 20, 2, 4),
)


@dataclass(frozen=True, slots=True)
class Load:
    """A shape over a protocol."""

    shape: Shape
    downstream_tls: bool = False  # clients speak TLS 1.3 to the candidate
    upstream_tls: bool = False  # the candidate speaks TLS 1.3 to the echo server

    @property
    def protocol(self) -> str:
        """plain, tls (towards clients) or tls-both."""
        return "tls-both" if self.upstream_tls else "tls" if self.downstream_tls else "plain"

    @property
    def title(self) -> str:
        return f"{self.protocol} {self.shape.title}"


def chosen(names: str, protocols: str) -> list[Load]:
    """The loads of a command line: names of shapes and of protocols, separated by commas. Raises ValueError: a name that is not known."""
    known = {shape.name: shape for shape in SHAPES}
    tls = {"plain": (False, False), "tls": (True, False), "tls-both": (True, True)}
    for name in (*names.split(","), *protocols.split(",")):
        if name not in known and name not in tls:
            raise ValueError(f"{name} is neither a shape ({', '.join(known)}) nor a protocol ({', '.join(tls)})")
    return [Load(known[name], *tls[protocol]) for protocol in protocols.split(",") for name in names.split(",")]
