"""What the actors and the engine say to each other: frozen values, and nothing that acts on them.

To the engine a message is a wish and is named in the imperative; what comes back is a fact.  Every value here can be
sent between processes.  `docs/design.md` has the table of who says what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NewType

from attrs import field, frozen

from strata.errors import StrataError

Seq = NewType("Seq", int)
"""Names a sequence for the life of a runtime; numbered in order of submission, never used twice."""

PROTOCOL = 4
"""Raised when a message changes its meaning, so that two halves of different builds refuse each other."""


# -- what a request asks for --------------------------------------------------------------------------------------

Role = Literal["system", "developer", "user", "assistant", "tool"]

# What may be asked for, over HTTP and by a program alike; ranges are (lowest, highest).
MAX_MESSAGES: Final = 4096
MAX_NAME_CHARACTERS: Final = 256
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
"""Of one stop string: each is looked at again for every character of the answer."""
MAX_TOKENS: Final = 2**31 - 1
"""Of any count of tokens, also `top_k`."""
MAX_BIASES: Final = 4096
BIAS: Final = (-100.0, 100.0)
LOGPROBS: Final = (0, 20)
PENALTY: Final = (-2.0, 2.0)
PRIORITY: Final = (-100, 100)
REPETITION: Final = (0.01, 10.0)
"""Nearer to 0, dividing by it leaves the range of the logits."""
SEED: Final = (-(2**63), 2**63 - 1)
TEMPERATURE: Final = (0.0, 2.0)


@frozen
class Sampling:
    """How the next token is chosen.  Everything that decides it is here, so equal values give equal text.

    Temperature 0 is greedy.  `seed` and the token's position alone feed the random numbers (counter based), never
    how many were drawn before.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep this many of the likeliest; 0 keeps all."""
    min_p: float = 0.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: not asked for.  n: the chosen token's and those of the n likeliest."""
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int = 256
    """The answer ends with `length` after this many tokens."""


@frozen
class ChatMessage:
    """`role` is one of `Role`; text parts have been joined."""

    role: str
    content: str
    name: str | None = None


@frozen(kw_only=True)
class Request:
    """A chat as its client asked for it, checked for types and ranges, not yet tokenised.

    None stands for "not named": the runtime's own default takes its place.
    """

    messages: tuple[ChatMessage, ...]
    model: str = "default"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: not asked for.  n: each token's log-probability and those of the n likeliest."""
    ignore_eos: bool = False
    min_tokens: int = 0
    cache_prompt: bool = True
    """False: all of the prompt is read, and nobody else is spared reading what it begins with."""
    priority: int | None = None
    """None: 0, or the highest that is allowed where that is lower."""
    id: str | None = None
    """The client's own name for it (`X-Request-Id`), for logs; need not be unique."""


@frozen
class TokenLogprob:
    """One token and its natural-log probability before temperature, penalties and cut-offs."""

    token: int
    logprob: float


# -- to the engine ------------------------------------------------------------------------------------------------


@frozen
class Open:
    """A new sequence.  `pages` are filled up to position `known` already (a cached prefix), and are shared: they are
    read and never written.  No device work.

    `written` are tokens that an engine before this one chose already (scheduling.md, R10): they are decoded again the
    way they were first, without being chosen or said, so that what follows has the same bits.
    """

    seq: Seq
    tokens: tuple[int, ...]
    sampling: Sampling
    pages: tuple[int, ...] = ()
    known: int = 0
    written: tuple[int, ...] = ()


@frozen
class Step:
    """From the next boundary on these sequences decode and this one reads; the others are parked where they stand.

    Numbered; the newest number counts.  It states what *may* run: a sequence that has read its prompt decodes, whether
    it stands in `decode` or in `read`, and one that has ended meanwhile is ignored.  `read_share` (0..1) and `gap_s`
    say how reading and decoding share the engine (scheduling.md, R4).
    """

    n: int
    decode: tuple[Seq, ...] = ()
    read: Seq | None = None
    read_until: int | None = None
    """Read chunks up to this position (tokens), None: to the end of the prompt."""
    read_share: float = 0.5
    gap_s: float = 0.0


@frozen
class Grant:
    """Pages that the sequence may fill, after those it has.  It pauses at their end and says so."""

    seq: Seq
    pages: tuple[int, ...]


@frozen
class SwapOut:
    """Copy these pages of a parked sequence to these slots of the host arena, one to one; then they are not its own."""

    seq: Seq
    pages: tuple[int, ...]
    slots: tuple[int, ...]


@frozen
class SwapIn:
    """Copy these slots of the arena to these pages, one to one, each to the place in the sequence that it left."""

    seq: Seq
    slots: tuple[int, ...]
    pages: tuple[int, ...]


@frozen
class Close:
    """Forget it, its half-done slices and its workspace too.  Valid in every state."""

    seq: Seq


@frozen
class Stop:
    """End the engine; answered by `Stopped`."""


ToEngine = Open | Step | Grant | SwapOut | SwapIn | Close | Stop


# -- from the engine ----------------------------------------------------------------------------------------------


@frozen
class Ready:
    """The engine is up, and this is what it has.  The ledger has exactly the pages that it names."""

    incarnation: int
    protocol: int
    pages: int
    page_tokens: int
    context: int
    """The longest sequence (tokens), prompt and answer together."""
    workspaces: int
    chunk_tokens: int
    device: str
    """For people: `cpu (numpy, 2 threads)`."""
    slots: int = 0
    """Pages that the host arena holds; 0: nothing can be swapped."""
    page_bytes: int = 0
    """What one page takes, on the device or in the arena; 0: it doesn't say."""


@frozen
class Took:
    """Step n is in force; every sequence that it left out is parked."""

    n: int


@frozen
class Progress:
    """A heartbeat: `done` of the chunk's `total` slices are complete.  Sent after each slice but a chunk's last."""

    seq: Seq
    chunk: int
    """Index of the chunk on the sequence's grid."""
    done: int
    total: int
    seconds: float
    """Engine time of this one slice."""


@frozen
class ChunkRead:
    """A chunk is complete and its keys and values are written up to `position` (tokens).

    At the end of the prompt a `Decoded` with the first token follows at once, and the sequence is a decoder.
    """

    seq: Seq
    position: int
    seconds: float
    """Engine time of the chunk's last slice."""


@frozen
class Row:
    """One token of a sequence in a decode step."""

    seq: Seq
    token: int
    ended: Literal["stop", "length"] | None = None
    """`stop`: `token` is an end token.  `length`: it is the last that was allowed."""
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@frozen
class Decoded:
    """One decode step under step message `n`, published whole: all rows, or those that did not fail.

    Several rows of one sequence are its next tokens, in order.
    """

    n: int
    rows: tuple[Row, ...]
    seconds: float
    """Engine time of the step; 0 for a first token, whose time is its chunk's."""
    again: tuple[Seq, ...] = ()
    """Those that took part without a row: the token after it is one of their `Open.written`."""
    drafted: int = 0
    """Tokens that were offered beyond the next one of each sequence."""
    accepted: int = 0
    """How many of those are among the rows."""


@frozen
class Wants:
    """It stands at the end of its granted pages."""

    seq: Seq


@frozen
class SwappedOut:
    """Its pages lie in the arena's slots and are free; `SwapOut` is done."""

    seq: Seq
    pages: tuple[int, ...]
    slots: tuple[int, ...]
    seconds: float


@frozen
class SwappedIn:
    """Its pages are on the device and the slots are free; `SwapIn` is done."""

    seq: Seq
    slots: tuple[int, ...]
    pages: tuple[int, ...]
    seconds: float


@frozen
class SeqFailed:
    """This sequence alone failed and is closed; others are untouched."""

    seq: Seq
    error: str


@frozen
class Closed:
    """Nothing of the sequence is left in the engine."""

    seq: Seq


@frozen
class Stopped:
    """The engine has ended as it was told to."""


@frozen
class EngineDied:
    """Said once, by the host's watcher, whatever the cause.  All but the reason is known of some deaths only."""

    reason: str
    last_step: int | None = None
    """The number of the step that was in force."""
    exit_code: int | None = None
    """Of the engine's process, if it ended itself."""
    signal: str | None = None
    """By which its process was killed: `SIGKILL`."""
    last_words: str = ""
    """What its process wrote on its way out, for the log: a fault's traceback, a library's complaint."""


FromEngine = (
    Ready
    | Took
    | Progress
    | ChunkRead
    | Decoded
    | Wants
    | SwappedOut
    | SwappedIn
    | SeqFailed
    | Closed
    | Stopped
    | EngineDied
)


# -- between request actors and the dispatcher --------------------------------------------------------------------


@frozen
class Submit:
    """Queue this prompt.  Answered by `Accepted` or `Refused`; a withdrawn one is forgotten before it is queued."""

    seq: Seq
    tokens: tuple[int, ...] = field(repr=lambda tokens: f"<{len(tokens)} tokens>")
    sampling: Sampling
    priority: int
    arrived: float
    """Monotonic seconds, taken when the request came in: order is by this, not by how long it took to tokenise."""
    named_max: bool
    """Whether the client named `max_tokens` itself (scheduling.md, `short_tokens`)."""
    prefix: tuple[bytes, ...] = field(default=(), repr=lambda prefix: f"<{len(prefix)} pages>")
    """For each full page of the prompt, in order, a hash of all tokens up to its end: equal hashes, equal contents."""


@frozen
class Accepted:
    seq: Seq


@frozen
class Refused:
    """Not taken, and why.  Nothing of it is left."""

    seq: Seq
    error: StrataError


@frozen
class Withdraw:
    """Forget this request, whatever its state, also before its submit arrives."""

    seq: Seq
    by: str
    """`client`, `admin`, `stop string`, `shutdown`: for the history and the log."""


@frozen
class Tokens:
    """Rows of one sequence, in order."""

    seq: Seq
    rows: tuple[Row, ...]


@frozen
class Completed:
    reason: Literal["stop", "length"]


@frozen
class Cancelled:
    by: str


@frozen
class Failed:
    error: StrataError


Outcome = Completed | Cancelled | Failed


@frozen(kw_only=True)
class Figures:
    """What was measured of one request, over all of its life (seconds and tokens).  Nothing another did changes it."""

    state: str
    """As in scheduling/lifecycle.py: `queued`, `parked (reading)`, ..."""
    prompt_tokens: int
    read_tokens: int
    """Read so far."""
    written_tokens: int
    cached_tokens: int = 0
    """Of its prompt, known when it first started."""
    ahead: int = 0
    """Requests that are served before this one, while it is queued."""
    queue_s: float = 0.0
    read_s: float = 0.0
    parked_s: float = 0.0
    decode_s: float = 0.0
    engine_s: float = 0.0
    """Time that the engine spent on it; of a decode step with n rows, the n-th part."""
    ttft_s: float | None = None
    """From arrival to the first token."""
    longest_gap_s: float = 0.0
    total_s: float = 0.0
    parks: Mapping[str, int] = field(factory=dict)
    """How often it was parked, by reason (`level`, `short`, `purse`, ...)."""
    parked_s_by: Mapping[str, float] = field(factory=dict)
    """`parked_s` by the same reasons."""
    resumes: int = 0


@frozen
class Ended:
    """The one terminal fact of a request, said exactly once, after its last tokens."""

    seq: Seq
    outcome: Outcome
    figures: Figures


# -- what a reader of a stream gets ---------------------------------------------------------------------------------


@frozen
class TextLogprob:
    """A token as text; `bytes` are its own, which need not be whole characters."""

    text: str
    bytes: bytes
    logprob: float
    top: tuple[TextLogprob, ...] = ()


@frozen
class Delta:
    """The next piece of the answer.  `tokens` of it may be 0 (held-back text set free) or several."""

    text: str
    tokens: int = 0
    logprobs: tuple[TextLogprob, ...] = ()


@frozen
class Summary:
    """How a completed answer ended, and what it took."""

    finish_reason: Literal["stop", "length"]
    figures: Figures
