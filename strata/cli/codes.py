"""The exit codes, as the package's first lines tell them."""

from __future__ import annotations

import signal
from typing import Final

CANT_START: Final = 2
ENGINE_DIED: Final = 3
"""There is no engine any more, and no other can be started; or the first was lost while it was loaded."""
SIGNALLED: Final = 128
"""And the signal's number: it was told twice, and ended with requests under way."""
INTERRUPTED: Final = 130
NOBODY_READS: Final = 128 + signal.SIGPIPE
"""What a shell shows of a tool that dies of it, as most do: `strata settings | head`."""
