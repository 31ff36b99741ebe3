"""The scheduler against a cost model: a day of traffic in a minute.  Made-up time, no engine, no client, no thread.

`simulate` runs a trace under some settings; everything that decides is the scheduler that serves, word for word.
"""

from strata.simulate.cost import CostModel, laptop, read_cost, write_cost
from strata.simulate.run import Machine, Run, simulate
from strata.simulate.trace import TraceRequest, read_trace, write_trace
from strata.simulate.traffic import generate

__all__ = [
    "CostModel",
    "Machine",
    "Run",
    "TraceRequest",
    "generate",
    "laptop",
    "read_cost",
    "read_trace",
    "simulate",
    "write_cost",
    "write_trace",
]
