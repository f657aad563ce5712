"""What libraries log becomes rows."""

import logging
import os

from framegate.control.logs import LibraryRows, RowLog
from tests.control.logs.test_row_log import lines
from tests.fakes.cases import each_of


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


def test_a_librarys_record_that_does_not_fit_its_arguments_is_a_row_and_an_exception_in_it_is_counted() -> None:
    reader, writer = os.pipe()
    log = RowLog(writer)
    counted: list[int] = []
    logger = logging.Logger("grpc")
    logger.addHandler(LibraryRows(log, lambda: counted.append(1)))
    logger.error("%d of %s", "x")
    assert counted == []
    logger.error("callback failed", exc_info=ValueError("no"))
    log.close()
    assert [row["message"] for row in lines(reader)] == ["%d of %s ('x',)", "callback failed"]
    assert counted == [1]
    os.close(reader)
    os.close(writer)


@each_of(("level", "shown"), [(logging.WARNING, "warning"), (logging.ERROR, "error"), (logging.CRITICAL, "error")])
def test_its_level_is_one_of_ours(level: int, shown: str) -> None:
    reader, writer = os.pipe()
    log = RowLog(writer)
    logger = logging.Logger("grpc")
    logger.addHandler(LibraryRows(log))
    logger.log(level, "said")
    log.close()
    assert [row["level"] for row in lines(reader)] == [shown]
    os.close(reader)
    os.close(writer)
