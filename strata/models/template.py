"""A chat as the text that the model was trained on, by the file's own template.

The template is a program in Jinja that came with the file, so it runs in a sandbox and on a budget.  Knows messages and
Jinja; nothing of tokens.  What templates may use is what Hugging Face's transformers offers them
(https://huggingface.co/docs/transformers/chat_templating).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata.errors import InvalidRequest, ModelError
from strata.messages import ChatMessage
from strata.models import meter

MAX_STEPS: Final = 2_000
"""Rounds of loops, calls, filters, operators and items copied in one rendering, and `STEPS_A_MESSAGE` more for each
message.  A real template takes a few hundred, and a few dozen for each.  A step takes some microseconds."""

STEPS_A_MESSAGE: Final = 100

MAX_GROWTH: Final = 20
"""Characters that may be made for each one of the messages, those of values that are dropped again among them, and
`SPARE_CHARACTERS` more."""

SPARE_CHARACTERS: Final = 1_000_000


class _Refused(jinja2.TemplateError):
    """The template itself says that it can't take these messages."""


class _CountingGenerator(CodeGenerator):
    """Begins the body of each loop and macro, and each loop's condition, with a call that is charged for the round.

    Text that stands in the template itself is charged there too.
    """

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802  (the names are Jinja's)
        if node.test is not None:
            node.test = nodes.And(_round(node, 0), node.test, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(_round(node, _constants(node)), lineno=node.lineno))
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802
        node.body.insert(0, nodes.ExprStmt(_round(node, _constants(node)), lineno=node.lineno))
        super().visit_Macro(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.visit(_environment_call("joined", node.nodes, node.lineno), frame)


def _environment_call(name: str, given: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), given, [], None, None, lineno=line)


def _round(node: nodes.Node, characters: int) -> nodes.Call:
    return _environment_call("next_round", [nodes.Const(characters)], node.lineno)


def _constants(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Charges whatever can take long or make much before it is done.

    Not charged are comparisons and lookups: each takes no longer than its values, which were paid for, are long.
    """

    code_generator_class = _CountingGenerator
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            # Else filters of constants run when the template is compiled.
            optimized=False,
            finalize=_written,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _metered(name, work) for name, work in self.filters.items() if name not in meter.REFUSED}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in meter.TEXT_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (Jinja's too)
        # Our own are charged by what they do.
        if getattr(__obj, "__self__", None) is not __self:
            meter.charge_call(__obj, *args, *kwargs.values())
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter.charge_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def next_round(self, characters: int) -> bool:
        """Called once for each round of each loop."""
        meter.charge(1, characters)
        return True

    def joined(self, *values: Any) -> str:
        """What `~` makes."""
        meter.charge_whole(values)
        return "".join(map(str, values))


@jinja2.pass_context
def _written(_: Context, value: Any) -> Any:
    """Called for all that a template writes."""
    meter.charge_whole(value)
    return value


def _metered(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, charged for what it is given and for what it makes."""
    # What Jinja itself gives first: its context or environment.
    own = 1 if hasattr(work, "jinja_pass_arg") else 0

    @wraps(work)
    def charged(*args: Any, **kwargs: Any) -> Any:
        meter.charge_filter(name, *args[own:], *kwargs.values())
        made = work(*args, **kwargs)
        if isinstance(made, Iterator):
            return _counted(made)
        if name not in meter.LOOKS:
            meter.charge_shallow(made)
        return made

    return charged


def _counted(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        meter.charge()
        yield item


class ChatTemplate:
    """A compiled template.  Immutable, and safe to use from several threads."""

    def __init__(self, source: str, *, bos_text: str = "", eos_text: str = "") -> None:
        """`bos_text` and `eos_text` are what the template's `bos_token` and `eos_token` stand for.

        Raises ModelError if the source is no template.
        """
        environment = _Sandbox()
        environment.globals |= {"bos_token": bos_text, "eos_token": eos_text}
        try:
            with meter.spending(_budget(())):
                self._template = environment.from_string(source)
        except (jinja2.TemplateError, meter.OverBudget) as error:
            raise ModelError(f"its chat template cannot be compiled ({error}); use another file") from error
        except (RecursionError, SyntaxError) as error:
            raise ModelError("its chat template is nested too deeply; use another file") from error

    def __repr__(self) -> str:
        return "<ChatTemplate>"

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The text of the whole chat; with `add_generation_prompt` up to where the answer begins.

        Raises InvalidRequest if the template refuses the messages, fails on them, or passes its bounds: `MAX_STEPS` and
        `MAX_GROWTH`, of time and of memory.
        """
        given = [_as_mapping(message) for message in messages]
        try:
            with meter.spending(_budget(messages)):
                return self._template.render(messages=given, tools=None, add_generation_prompt=add_generation_prompt)
        except (jinja2.TemplateError, meter.OverBudget) as error:
            raise InvalidRequest(str(error) or "the chat template refused the messages", param="messages") from error
        except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the chat template cannot take these messages: {error}", param="messages") from error


def _budget(messages: Sequence[ChatMessage]) -> meter.Budget:
    return meter.Budget(
        steps=MAX_STEPS + STEPS_A_MESSAGE * len(messages),
        characters=SPARE_CHARACTERS + MAX_GROWTH * sum(len(message.content) + 16 for message in messages),
    )


def _as_mapping(message: ChatMessage) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    return fields if message.name is None else {**fields, "name": message.name}


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(pattern: str) -> str:
    """Today, by this machine's clock, for templates that tell the model the date."""
    # The system takes a width there too.
    meter.charge_format(pattern)
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
