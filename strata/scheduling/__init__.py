"""What runs next.  Pure: time comes in as an argument, and nothing here waits, draws, or knows a device or a client.

`Scheduler` takes wishes and facts and answers with a `Decision`; the rules it goes by are in docs/scheduling.md.
"""

from strata.scheduling.decision import Decision, Statistics
from strata.scheduling.lifecycle import Change, State
from strata.scheduling.scheduler import Scheduler

__all__ = ["Change", "Decision", "Scheduler", "State", "Statistics"]
