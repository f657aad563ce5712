"""The log: rows on stdout, as JSON or text."""

from framegate.control.logs.audit_file import AuditFile
from framegate.control.logs.forms import Form, JsonForm, TextForm, form_of
from framegate.control.logs.row_log import Levels, LibraryRows, RowCopy, RowLog, audit_line, check_silenced

__all__ = ["AuditFile", "Form", "JsonForm", "Levels", "LibraryRows", "RowCopy", "RowLog", "TextForm", "audit_line", "check_silenced", "form_of"]
