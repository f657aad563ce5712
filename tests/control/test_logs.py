import datetime
import json
import logging
import os

from control.logs import LibraryRows, RowLog


def lines(descriptor: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(descriptor, 1 << 20).splitlines()]


def test_rows_are_json_lines_in_order_with_time_level_and_event_first() -> None:
    reader, writer = os.pipe()
    log = RowLog(writer)
    log.write("one", listener="a")
    log.write("two", level="error", path=os.sep, strange={1, 2}.__class__)
    log.close()
    rows = lines(reader)
    assert [list(row)[:3] for row in rows] == [["time", "level", "event"]] * 2
    assert [(row["level"], row["event"]) for row in rows] == [("info", "one"), ("error", "two")]
    assert str(rows[0]["time"]).endswith("Z")
    assert rows[1]["strange"] == "<class 'set'>"
    os.close(reader)
    os.close(writer)


def test_a_row_that_is_json_already_looks_like_any_other() -> None:
    reader, writer = os.pipe()
    log = RowLog(writer, capacity=0)
    log.write_encoded("lost", "{}")
    log._capacity = 10
    log.write_encoded("closed", '{"id": "0-1-2", "detail": "said \\"no\\""}')
    log.write_encoded("closed", '{"id": "0-1-3"}')
    log.close()
    first, second = lines(reader)
    assert list(first) == ["time", "level", "event", "rows_dropped", "id", "detail"]
    assert (first["level"], first["event"], first["rows_dropped"], first["detail"]) == ("info", "closed", 1, 'said "no"')
    assert list(second) == ["time", "level", "event", "id"]
    assert datetime.datetime.fromisoformat(str(first["time"])).tzinfo == datetime.UTC
    os.close(reader)
    os.close(writer)


def test_rows_that_do_not_fit_are_dropped_and_counted_in_the_next() -> None:
    reader, writer = os.pipe()
    log = RowLog(writer, capacity=0)
    log.write("lost")
    log.write("lost")
    log._capacity = 10
    log.write("kept")
    log.close()
    (row,) = lines(reader)
    assert row["event"] == "kept"
    assert row["rows_dropped"] == 2
    os.close(reader)
    os.close(writer)


def test_a_reader_that_is_gone_stops_rows_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = RowLog(writer)
    log.write("nobody hears")
    log.write("nobody hears")
    log.close()
    os.close(writer)


def test_what_a_library_logs_becomes_a_row_with_its_error() -> None:
    reader, writer = os.pipe()
    log = RowLog(writer)
    logger = logging.Logger("opentelemetry.exporter")
    logger.addHandler(LibraryRows(log))
    logger.info("not worth a row")
    try:
        raise ConnectionRefusedError("nobody there")
    except ConnectionRefusedError:
        logger.exception("export to %s failed", "collector")
    log.close()
    (row,) = lines(reader)
    assert (row["event"], row["level"], row["logger"]) == ("library_log", "error", "opentelemetry.exporter")
    assert (row["message"], row["error"]) == ("export to collector failed", "ConnectionRefusedError: nobody there")
    os.close(reader)
    os.close(writer)
