"""A chat as the text that the model was trained on, by the file's own template.

The template is a program in Jinja that came with the file, so it runs in a sandbox and on a budget.  Knows messages and
Jinja; nothing of tokens.  What templates may use is what Hugging Face's transformers offers them
(https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata.errors import InvalidRequest, ModelError
from strata.messages import ChatMessage

MAX_STEPS: Final = 100_000
"""Rounds of loops and calls in one rendering, and `STEPS_A_MESSAGE` more for each message.  A real template takes a few
for each, and so many take half a second.  This is what ends a template that would loop for ever."""

STEPS_A_MESSAGE: Final = 50

MAX_GROWTH: Final = 4
"""A rendered chat may be this many times as long as its messages, and `SPARE_CHARACTERS` more."""

SPARE_CHARACTERS: Final = 1_000_000

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class _Refused(jinja2.TemplateError):
    """The template itself says that it can't take these messages, or has spent its budget."""


class _CountingGenerator(CodeGenerator):
    """Begins the body of each loop with a call, so that `_Sandbox.call` sees every round."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802  (the name is Jinja's)
        step = nodes.Call(nodes.EnvironmentAttribute("next_round"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        super().visit_For(node, frame)


class _Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = _CountingGenerator
    # `"x" * 10**10` and `10 ** 10 ** 10` are single operations: no count of steps would see them.
    intercepted_binops = frozenset(("*", "**"))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (Jinja's too)
        left = _steps_left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _Refused("the chat template has not ended after all its steps")
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise _Refused(f"the chat template uses {operator} in a way that is not allowed")
        return super().call_binop(context, operator, left, right)

    def next_round(self) -> None:
        """Called once for each round of each loop; the calling is what counts."""


class ChatTemplate:
    """A compiled template.  Immutable, and safe to use from several threads."""

    def __init__(self, source: str, *, bos_text: str = "", eos_text: str = "") -> None:
        """`bos_text` and `eos_text` are what the template's `bos_token` and `eos_token` stand for.

        Raises ModelError if the source is no template.
        """
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        environment.globals |= {"bos_token": bos_text, "eos_token": eos_text}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"its chat template cannot be compiled ({error}); use another file") from error
        except (RecursionError, SyntaxError) as error:
            raise ModelError("its chat template is nested too deeply; use another file") from error

    def __repr__(self) -> str:
        return "<ChatTemplate>"

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The text of the whole chat; with `add_generation_prompt` up to where the answer begins.

        Raises InvalidRequest if the template refuses the messages, fails on them, or passes its bounds: `MAX_STEPS`
        rounds and calls, and `MAX_GROWTH`.  No bound is set to what a single filter does with one message's text.
        """
        given = [_as_mapping(message) for message in messages]
        limit = MAX_GROWTH * sum(len(message.content) for message in messages) + SPARE_CHARACTERS
        token = _steps_left.set([MAX_STEPS + STEPS_A_MESSAGE * len(given)])
        try:
            return _joined(
                self._template.generate(messages=given, tools=None, add_generation_prompt=add_generation_prompt),
                limit,
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(str(error) or "the chat template refused the messages", param="messages") from error
        except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the chat template cannot take these messages: {error}", param="messages") from error
        finally:
            _steps_left.reset(token)


def _as_mapping(message: ChatMessage) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    return fields if message.name is None else {**fields, "name": message.name}


def _joined(pieces: Iterable[str], limit: int) -> str:
    kept: list[str] = []
    for piece in pieces:
        limit -= len(piece)
        if limit < 0:
            raise _Refused("the chat template makes far more text than the messages have")
        kept.append(piece)
    return "".join(kept)


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(pattern: str) -> str:
    """Today, by this machine's clock, for templates that tell the model the date."""
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
