"""`strata chat`: a conversation in the terminal, with a model in this very process."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.choose import chosen_model
from strata.cli.config_file import config_option
from strata.cli.flags import named, setting_options
from strata.cli.lines import Lines
from strata.cli.ranges import FiniteRange
from strata.config import EngineSettings, Settings
from strata.errors import PromptTooLong, StrataError

if TYPE_CHECKING:
    from strata.cli.background import Answer, Background
    from strata.messages import Summary

TEMPERATURE: Final = 0.2
TOP_P: Final = 0.9
"""As the authors of the default model use it; what suits large models (0.7 and more) makes small ones ramble."""
HELP: Final = """\
  /reset   forget the conversation
  /stats   what the last answer took
  /help    this
  /quit    end; so does Ctrl-D
Ctrl-C stops an answer."""


@click.command()
@click.argument("question", required=False)
@click.option("--model", envvar="STRATA_MODEL", help="A file, a folder or a pulled name, or else the default model.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--temperature", type=FiniteRange(0, 2), default=TEMPERATURE, show_default=True)
@click.option("--top-p", type=FiniteRange(0, 1, min_open=True), default=TOP_P, show_default=True)
@click.option("--seed", type=int, help="The same seed gives the same answers.")
@click.option("--max-tokens", type=click.IntRange(1), help="The longest answer.  [default: what the context leaves]")
@setting_options(EngineSettings)
@config_option
def chat(question: str | None, model: str | None, system: str | None, **flags: Any) -> int:
    """Talks with a model, in this terminal.  With QUESTION: answers it and ends; the exit code is 1 if it can't."""
    from strata.cli.background import Background
    from strata.runtime import open_runtime

    if question is not None and not question.strip():
        raise click.UsageError("QUESTION is empty; without one a conversation begins")
    asked = named({name: flags.pop(name) for name in ("temperature", "top_p", "seed", "max_tokens")})
    settings = Settings.of(**named(flags))
    with Background(open_runtime(chosen_model(model), settings=settings)) as background:
        conversation = Conversation(background, system=system, asked=asked)
        if question is not None:
            return 0 if _answered(conversation, question) else 1
        if _at_a_terminal():
            click.secho(f"{background.model.id}; /help tells what else can be typed", dim=True)
        talk(conversation, _read_line)
        return 0


def _answered(conversation: Conversation, text: str, *, hint: str = "") -> bool:
    """Ask, and print the answer or what hinders it; `hint` goes on where it is all that was said before."""
    try:
        conversation.say(text)
    except StrataError as problem:
        click.secho(f"{problem}{hint if isinstance(problem, PromptTooLong) else ''}", fg="red", err=True)
        return False
    return True


def talk(conversation: Conversation, read_line: Callable[[], str]) -> None:
    """Until /quit or the end of the input.  `read_line` raises EOFError there, and KeyboardInterrupt at Ctrl-C."""
    while True:
        try:
            line = read_line().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D or /quit ends)")
            continue
        if line == "/quit":
            return
        if line.startswith("/"):
            _obey(line, conversation)
        elif line:
            _answered(conversation, line, hint="; /reset begins anew")


def _obey(command: str, conversation: Conversation) -> None:
    match command:
        case "/reset":
            conversation.reset()
            click.secho("Forgotten.", dim=True)
        case "/stats":
            lines = _lines()
            click.secho(lines.take(conversation.stats()) + lines.rest(), dim=True)
        case "/help":
            click.echo(HELP)
        case _:
            click.echo(f"{command} is unknown.\n{HELP}")


class Conversation:
    """All that was said, and what the last answer took."""

    def __init__(self, background: Background, *, system: str | None, asked: Mapping[str, Any]) -> None:
        self._background = background
        self._begin: list[Mapping[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._begin)
        self._asked = asked
        self._last: Summary | None = None

    def say(self, text: str) -> None:
        """Ask, and print the answer as it comes.  Raises StrataError, and is as if nothing had been said then."""
        messages = [*self._messages, {"role": "user", "content": text}]
        written = _print(self._background.ask(messages, **self._asked), self._ended)
        self._messages = [*messages, {"role": "assistant", "content": written}]

    def reset(self) -> None:
        self._messages = list(self._begin)
        self._last = None

    def stats(self) -> str:
        """The last answer in figures."""
        if self._last is None:
            return "Nothing was answered yet."
        figures = self._last.figures
        # A few tokens of a small model may all come at the same moment.
        speed = f" at {figures.written_tokens / figures.decode_s:.1f} a second" if figures.decode_s else ""
        return (
            f"{len(self._messages)} messages; {figures.prompt_tokens} tokens read in {figures.read_s:.2f} s "
            f"({figures.cached_tokens} known before), {figures.written_tokens} written{speed}; "
            f"first token after {figures.ttft_s or 0:.2f} s"
        )

    def _ended(self, answer: Answer) -> None:
        self._last = answer.summary or self._last


def _print(answer: Answer, ended: Callable[[Answer], None]) -> str:
    """The whole text, printed as it came; Ctrl-C stops the answer and not the program."""
    written: list[str] = []
    lines = _lines()
    with _ctrl_c(answer.stop):
        try:
            for piece in answer:
                written.append(piece)
                click.echo(lines.take(_printable(piece)), nl=False)
        finally:
            click.echo(lines.rest(), nl=False)
    click.echo("" if answer.summary is not None else " (stopped)")
    ended(answer)
    return "".join(written)


def _lines() -> Lines:
    """As long as the terminal's, if it is one that is written to."""
    return Lines(shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None)


@contextlib.contextmanager
def _ctrl_c(call: Callable[[], None]) -> Iterator[None]:
    """In this block Ctrl-C calls `call`, and raises nothing: an exception could strike between any two steps."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: call())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _printable(text: str) -> str:
    """Without what a terminal would obey: a model may write any character."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _read_line() -> str:
    # Gives input() a history and line editing where the system has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    if sys.stdin is None:
        raise EOFError
    return input("> " if _at_a_terminal() else "")


def _at_a_terminal() -> bool:
    # Whoever started us may have closed it.
    return sys.stdin is not None and sys.stdin.isatty()
