"""Strata: an actor runtime on Trio that serves language models from one machine to many clients.

async with strata.open_runtime("model.gguf") as runtime:
    async with runtime.chat([{"role": "user", "content": "Hello"}]) as stream:
        async for delta in stream:
            print(delta.text, end="")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strata.config import Settings
from strata.errors import (
    AlreadyDone,
    ConfigError,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RequestCancelled,
    SequenceFailed,
    ShuttingDown,
    StartError,
    StrataError,
    TryAgain,
    UnknownRequest,
)
from strata.messages import ChatMessage, Delta, Figures, Request, Summary

if TYPE_CHECKING:
    from strata.runtime import Runtime, Stream, open_runtime

__all__ = [
    "AlreadyDone",
    "ChatMessage",
    "ConfigError",
    "Delta",
    "EngineUnavailable",
    "Figures",
    "InternalError",
    "InvalidRequest",
    "ModelError",
    "ModelNotFound",
    "Overloaded",
    "PromptTooLong",
    "Request",
    "RequestCancelled",
    "Runtime",
    "SequenceFailed",
    "Settings",
    "ShuttingDown",
    "StartError",
    "StrataError",
    "Stream",
    "Summary",
    "TryAgain",
    "UnknownRequest",
    "open_runtime",
]

_LATE = frozenset({"Runtime", "Stream", "open_runtime"})


def __getattr__(name: str) -> Any:
    """Trio, NumPy and the tokenizers are imported when the runtime is first asked for, not before."""
    if name not in _LATE:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    return getattr(import_module("strata.runtime"), name)
