"""The log: rows on stdout, as JSON or text.

row_log     the queue and the thread that writes; rows that must not be lost reserve a place
levels      which rows are written, by level and event
forms       JSON, or text for terminals
library     log records of libraries, as rows
catalog     every event: its meaning and its fields
schema      the catalog as JSON Schema and as a table (``python -m framegate.control.logs`` writes both into ``deploy/``)
"""

from framegate.control.logs.forms import Form, JsonForm, TextForm, form_of
from framegate.control.logs.levels import Levels
from framegate.control.logs.library import LibraryRows
from framegate.control.logs.row_log import RowCopy, RowLog

__all__ = ["Form", "JsonForm", "Levels", "LibraryRows", "RowCopy", "RowLog", "TextForm", "form_of"]
