"""Strata: an actor runtime on Trio that serves language models from one machine to many clients.

async with strata.open_runtime("model.gguf") as runtime:
    async with runtime.chat([{"role": "user", "content": "Hello"}]) as stream:
        async for delta in stream:
            print(delta.text, end="")
"""

from __future__ import annotations

from strata.lazily import TYPE_CHECKING, lazily

if TYPE_CHECKING:
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

# A command must be able to take Ctrl-C before anything large is imported.
__getattr__ = lazily(__name__, __all__, ("errors", "config", "messages", "runtime"))
