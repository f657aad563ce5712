"""The log: what happens, as rows on stdout, for people and machines.

row_log     the queue and the thread that writes; rows that must not be lost have places
levels      which rows are written: from a level on, and not those that are silenced by name
forms       how a row is written: JSON, or text for terminals
library     what libraries log, as rows
catalog     every event that there is, what it means and what its row has
schema      the catalog as JSON Schema and as a table (``python -m control.logs`` writes both into ``deploy/``)
"""

from control.logs.forms import Form, JsonForm, TextForm, form_of
from control.logs.levels import Levels
from control.logs.library import LibraryRows
from control.logs.row_log import RowCopy, RowLog

__all__ = ["Form", "JsonForm", "Levels", "LibraryRows", "RowCopy", "RowLog", "TextForm", "form_of"]
