"""Who the model is to its clients: its names, sizes, tokenizer and template.  Knows no engine's work and no actor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import trio
from attrs import frozen

from strata.actors.prompt import Language, Template, Tokenizer
from strata.errors import ModelError
from strata.models.file import ModelFile, OpenedOnce, name_of
from strata.models.hub import find_model
from strata.models.source import default_model_path

QUICK_CHARACTERS: Final = 512
"""A chat of so many takes about 0.4 ms to tokenise, as long as the way to a thread and back beside a busy engine."""


@frozen(kw_only=True)
class ModelInfo:
    """What is served."""

    id: str
    aliases: tuple[str, ...] = ()
    """Other names that a request may call it by; `default` is always one."""
    context: int
    """The longest sequence (tokens), prompt and answer together."""
    size_bytes: int | None = None
    quantisation: str | None = None
    architecture: str | None = None
    created: int = 0
    """Unix time of the file's last change."""


@runtime_checkable
class SpeakingHost(Protocol):
    """A host that brings its own language, as `strata.testing.ScriptedEngine` does."""

    tokenizer: Tokenizer
    template: Template


@frozen
class Voice:
    """How the model is spoken to, and its file, if it has one."""

    tokenizer: Tokenizer
    template: Template
    quick_characters: int
    file: ModelFile | None = None

    @property
    def name(self) -> str:
        return "scripted" if self.file is None else self.file.name

    def info(self, served_name: str | None, context: int) -> ModelInfo:
        own = self.name
        return ModelInfo(
            id=served_name or own,
            aliases=() if served_name in (None, own) else (own,),
            context=context,
            size_bytes=None if self.file is None else self.file.size_bytes,
            quantisation=None if self.file is None else self.file.quantisation,
            architecture=None if self.file is None else self.file.architecture,
            created=0 if self.file is None else int(self.file.path.stat().st_mtime),
        )

    def language(self, info: ModelInfo, page_tokens: int | None = None) -> Language:
        return Language(
            tokenizer=self.tokenizer,
            template=self.template,
            context=info.context,
            names=frozenset({info.id, *info.aliases, "default"}),
            quick_characters=self.quick_characters,
            page_tokens=page_tokens,
        )


def find_file(model: str | Path | None) -> OpenedOnce:
    """The file, opened only if that takes seconds: then nobody else should do it at the same time.  Blocks.

    Raises ModelError.
    """
    file = OpenedOnce(_default_model() if model is None else find_model(model))
    if not file.is_quick:
        file()
    return file


def name_of_voice(voice: Voice | OpenedOnce) -> str:
    """The model's name where none other is set, also before the file is open."""
    return voice.name if isinstance(voice, Voice) else name_of(voice.path)


async def heard(voice: Voice | OpenedOnce) -> Voice:
    """A file's own, once it is open.  Raises ModelError."""
    if isinstance(voice, Voice):
        await trio.lowlevel.checkpoint()
        return voice
    opened = await trio.to_thread.run_sync(voice)
    return Voice(opened.tokenizer, opened.template, QUICK_CHARACTERS, opened)


def own_voice(host: object) -> Voice | None:
    """The host's own language, if it has one."""
    if not isinstance(host, SpeakingHost):
        return None
    return Voice(host.tokenizer, host.template, quick_characters=sys.maxsize)


def _default_model() -> Path:
    path = default_model_path()
    if not path.exists():
        raise ModelError(f"the default model is not at {path}; run `strata pull`, or name a GGUF file")
    return path
