"""Tables on the terminal.

What lives here: the console that tables are drawn for. What does not: the tables.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 160


def wide_console() -> "Console":
    """Make a console as wide as the terminal; into a file or pipe, wide enough for every column."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)  # a name is shown as it is
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDTH_WITHOUT_TERMINAL)
