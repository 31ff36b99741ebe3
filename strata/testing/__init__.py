"""What tests of Strata, and of what is built on it, run against: real protocols, virtual time, no model file.

    async with strata.open_runtime(host=ScriptedEngine(script=Script(by_text={"ping": "pong"}))) as runtime: ...

`ChaosHost` and `chaotic` make any engine go wrong where it is told to, in virtual time and in a process of its own.
`strata.testing.tiny_model` writes small model files; it is not imported from here, for it needs more than Trio.
"""

from strata.testing.chaos import ChaosEngine, ChaosHost, Mishap, chaotic
from strata.testing.language import ByteTokenizer, PlainTemplate
from strata.testing.pages import ProtocolError
from strata.testing.script import Fault, RowFault, Script
from strata.testing.scripted import Ran, ScriptedEngine

__all__ = [
    "ByteTokenizer",
    "ChaosEngine",
    "ChaosHost",
    "Fault",
    "Mishap",
    "PlainTemplate",
    "ProtocolError",
    "Ran",
    "RowFault",
    "Script",
    "ScriptedEngine",
    "chaotic",
]
