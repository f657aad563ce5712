"""What a reader wants of a log: nodes, listeners, directions and times. The planner leaves out nodes, streams and segments that have nothing of it, a
task the rows. What a filter cannot decide stays: a gap that may be about any listener, and every loss that the reader finds itself.
"""

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from framegate.proxy.tap.ledger import StreamRecord
from framegate.proxy.tap.log_reader import Segment
from framegate.proxy.tap.log_segments import CLOCKS_NS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_WORDS: Final = ("node", "listener", "direction")
Words = frozenset[str] | None


class Wanted(NamedTuple):
    """Rows of these nodes, listeners and directions (None: any), captured in ``[since_ns, until_ns)``; until 0: no end."""

    node: Words = None
    listener: Words = None
    direction: Words = None
    since_ns: int = 0
    until_ns: int = 0

    def takes_node(self, node: str) -> bool:
        return self.node is None or node in self.node

    def takes_stream(self, record: StreamRecord | None) -> bool:
        """Whether a stream may have such rows, by its line in the ledger."""
        if record is None or record.recovery or record.adopted:
            return True
        if self.until_ns and record.born_ns - CLOCKS_NS >= self.until_ns:
            return False
        return self.listener is None or not record.tapped or any(listener in self.listener for listener, _ in record.tapped)

    def takes_segment(self, segment: Segment) -> bool:
        """Whether a sealed segment may have such rows: all of them were captured before its last write, unless clocks differ by ``CLOCKS_NS``."""
        return segment.modified_ns + CLOCKS_NS >= self.since_ns

    def takes_times(self, first_ns: int, last_ns: int) -> bool:
        """Whether a block with these times may have such rows."""
        return last_ns + CLOCKS_NS >= self.since_ns and (not self.until_ns or first_ns - CLOCKS_NS < self.until_ns)

    @property
    def columns(self) -> list[str]:
        """The columns that ``rows`` needs."""
        words = [name for name in ("listener", "direction") if getattr(self, name) is not None]
        return [*words, *(["capture_time"] if self.since_ns or self.until_ns else [])]

    def rows(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        import pyarrow as pa
        import pyarrow.compute as pc

        for name in self.columns:
            if name == "capture_time":
                times = batch[name].cast(pa.int64())
                keep = pc.greater_equal(times, -(-self.since_ns // 1000))
                keep = pc.and_(keep, pc.less(times, -(-self.until_ns // 1000))) if self.until_ns else keep
            else:
                keep = pc.or_(pc.is_null(batch[name]), pc.is_in(batch[name], pa.array(sorted(getattr(self, name)))))
            batch = batch.filter(keep)
        return batch

    def narrowed(self, filters: "Iterable[Filter]") -> "Wanted":
        """With Spark's filters, too. Those that it does not know are left out; Spark applies all of them once more."""
        from pyspark.sql import datasource as spark

        wanted = self
        for one in filters:
            (column, *rest), value = getattr(one, "attribute", ("",)), getattr(one, "value", None)
            if rest:
                continue
            if column in _WORDS and isinstance(one, spark.EqualTo):
                wanted = wanted._with(column, [value])
            elif column in _WORDS and isinstance(one, spark.In):
                wanted = wanted._with(column, one.value)
            elif column == "capture_time" and isinstance(value, datetime.datetime):
                at_ns = nanoseconds(value)
                if isinstance(one, (spark.GreaterThan, spark.GreaterThanOrEqual, spark.EqualTo)):
                    wanted = wanted._replace(since_ns=max(wanted.since_ns, at_ns))
                if isinstance(one, (spark.LessThan, spark.LessThanOrEqual, spark.EqualTo)):
                    wanted = wanted._replace(until_ns=min(wanted.until_ns or at_ns + 1000, at_ns + 1000))
        return wanted

    def _with(self, name: str, values: Iterable[object]) -> "Wanted":
        words = frozenset(value for value in values if isinstance(value, str))
        known: Words = getattr(self, name)
        change: dict[str, Any] = {name: words if known is None else words & known}
        return self._replace(**change)


EVERYTHING: Final = Wanted()


def nanoseconds(at: datetime.datetime) -> int:
    """Wall clock of a time; without a zone it is of this process's, as Spark's values are."""
    return (at.astimezone(datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
