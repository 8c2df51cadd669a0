"""The progress of programs that do not use the library: what their lines and their metrics say. Pure.

A program may write anything into its log. So everything is bounded here, whatever the source: the length of
a line, the lines of a look, the number and size of values. Patterns are those of RE2, whose time is linear in the line.
"""

from espalier_operator.programs.lines import MAX_LINE_BYTES, LineReader, lines_of
from espalier_operator.programs.reading import NOTHING, Reading
from espalier_operator.programs.series import MAX_PAGE_BYTES, values_of_page

__all__ = ["MAX_LINE_BYTES", "MAX_PAGE_BYTES", "NOTHING", "LineReader", "Reading", "lines_of", "values_of_page"]
