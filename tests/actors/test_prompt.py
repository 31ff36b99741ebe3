"""From a request to a prompt: what is refused, and what the defaults are."""

from typing import Any

import pytest
from attrs import evolve

from strata.actors.prompt import Language, Prompt, prepare
from strata.config import RequestSettings
from strata.errors import InvalidRequest, ModelNotFound, PromptTooLong
from strata.messages import ChatMessage, Request
from strata.scheduling.prefix import chain
from strata.testing.language import ByteTokenizer, PlainTemplate

LANGUAGE = Language(
    tokenizer=ByteTokenizer(), template=PlainTemplate(), context=100, names=frozenset({"tiny", "default"})
)
HELLO = ChatMessage("user", "hello")
RENDERED = b"user: hello\nassistant: "


def prompt(request: Request | None = None, *, settings: RequestSettings | None = None, **named: Any) -> Prompt:
    named.setdefault("messages", (HELLO,))
    return prepare(request or Request(**named), LANGUAGE, settings or RequestSettings())


def test_a_prompt_is_the_template_s_text_as_tokens() -> None:
    assert bytes(prompt().tokens) == RENDERED


def test_a_prompt_longer_than_the_context_is_refused_naming_both_sizes() -> None:
    """B11: where it is the model's context that it doesn't fit."""
    with pytest.raises(PromptTooLong, match=r"118 tokens.*100 tokens") as caught:
        prompt(messages=(ChatMessage("user", "x" * 100),))
    assert (caught.value.tokens, caught.value.limit, caught.value.param) == (118, 100, "messages")


def test_a_text_that_no_tokenizer_could_make_fit_is_refused_before_it_is_tokenised() -> None:
    """B11: four megabytes would take seconds, and then be refused all the same."""

    class LongTokens(ByteTokenizer):
        longest_token = 10
        seen = 0

        def encode(self, text: str, *, special: bool = True) -> list[int]:
            self.seen += 1
            return super().encode(text, special=special)[::10]

    tokenizer = LongTokens()
    language = Language(tokenizer=tokenizer, template=PlainTemplate(), context=100, names=frozenset({"default"}))
    room = 1000 - len(RENDERED) + len("hello")

    def ask(characters: int) -> Prompt:
        request = Request(messages=(ChatMessage("user", "x" * characters),))
        return prepare(request, language, RequestSettings())

    with pytest.raises(PromptTooLong, match=r"1010 characters.*at least 101 tokens.*100 tokens"):
        ask(room + 10)
    assert tokenizer.seen == 0
    with pytest.raises(PromptTooLong, match=r"has 100 tokens"):
        ask(room)
    assert len(ask(room - 10).tokens) == 99


def test_a_prompt_that_leaves_no_room_for_one_token_is_refused() -> None:
    room = 100 - len(RENDERED) + len("hello")
    with pytest.raises(PromptTooLong):
        prompt(messages=(ChatMessage("user", "x" * room),))
    assert prompt(messages=(ChatMessage("user", "x" * (room - 1)),)).sampling.max_tokens == 1


def test_more_tokens_than_the_context_leaves_are_refused_naming_the_sizes() -> None:
    left = 100 - len(RENDERED)
    assert prompt(max_tokens=left).sampling.max_tokens == left
    with pytest.raises(PromptTooLong, match=r"23 tokens.*max_tokens is 78.*100") as caught:
        prompt(max_tokens=left + 1)
    assert caught.value.param == "max_tokens"


def test_max_tokens_that_is_not_named_is_the_default_or_what_the_context_leaves() -> None:
    assert prompt(settings=RequestSettings(default_max_tokens=10)).sampling.max_tokens == 10
    assert prompt(settings=RequestSettings(default_max_tokens=1000)).sampling.max_tokens == 100 - len(RENDERED)
    assert not prompt().named_max
    assert prompt(max_tokens=5).named_max


def test_unnamed_sampling_has_the_api_s_defaults_and_another_seed_each_time() -> None:
    one, other = prompt().sampling, prompt().sampling
    assert (one.temperature, one.top_p, one.top_k, one.min_p) == (1.0, 1.0, 0, 0.0)
    assert one.seed != other.seed
    assert prompt(seed=7, temperature=0.0).sampling.seed == 7
    assert prompt(temperature=0.0).sampling.temperature == 0.0


def test_a_model_that_is_not_served_is_not_found() -> None:
    assert prompt(model="tiny").tokens == prompt(model="default").tokens
    with pytest.raises(ModelNotFound, match="gpt-9"):
        prompt(model="gpt-9")


@pytest.mark.parametrize(
    ("named", "param"),
    [
        ({"messages": ()}, "messages"),
        ({"priority": 1}, "priority"),
        ({"priority": -101}, "priority"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"stop": ("x" * 5000,)}, "stop"),
        ({"logit_bias": ((257, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((0, 101.0),)}, "logit_bias"),
        ({"temperature": 2.1}, "temperature"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty"),
        ({"repetition_penalty": 10.1}, "repetition_penalty"),
        ({"stop": ("x" * 1025,)}, "stop"),
        ({"messages": (HELLO,) * 4097}, "messages"),
        ({"messages": (ChatMessage("user", "half of a pair: \ud83d"),)}, "messages[0].content"),
        ({"messages": (HELLO, ChatMessage("user", "x", "n" * 257))}, "messages[1].name"),
        ({"messages": (HELLO, ChatMessage("robot", "x"))}, "messages[1].role"),
    ],
)
def test_what_can_t_be_served_is_refused_by_its_name(named: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompt(**named)
    assert caught.value.param == param


WRONG_TYPES: list[tuple[str, Any]] = [
    ("messages", None),
    ("messages", "hello"),
    ("messages", ("hello",)),
    ("messages", (ChatMessage("user", b"bytes"),)),
    ("model", None),
    ("model", ["tiny"]),
    ("max_tokens", 3.0),
    ("max_tokens", "3"),
    ("max_tokens", True),
    ("max_tokens", 10**5000),
    ("min_tokens", 1.5),
    ("min_tokens", None),
    ("top_k", 3.5),
    ("top_k", 10**5000),
    ("seed", 1.5),
    ("seed", "lucky"),
    ("logprobs", 1.5),
    ("logprobs", True),
    ("priority", 0.0),
    ("priority", "high"),
    ("temperature", [1]),
    ("temperature", 10**5000),
    ("frequency_penalty", None),
    ("stop", "END"),
    ("stop", (5,)),
    ("stop", None),
    ("stop", ("\ud83d",)),
    ("logit_bias", 7),
    ("logit_bias", {7: 1.0}),
    ("logit_bias", (("7", 1.0),)),
    ("logit_bias", ((7.0, 1.0),)),
    ("logit_bias", ((7, "much"),)),
    ("logit_bias", ((7, 1.0, 2.0),)),
    ("logit_bias", ((10**5000, 1.0),)),
    ("logit_bias", (7,)),
    ("ignore_eos", "x"),
    ("ignore_eos", 1),
    ("id", 7),
]


@pytest.mark.parametrize(("field", "value"), WRONG_TYPES, ids=lambda value: None if isinstance(value, str) else "...")
def test_a_value_of_another_type_is_refused_by_its_field(field: str, value: Any) -> None:
    """A number with a fraction for a count would go on into the scheduler, and end it for everybody."""
    with pytest.raises(InvalidRequest) as caught:
        prompt(**{field: value})
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)
    assert len(str(caught.value)) < 200


def test_who_names_no_priority_gets_0_or_the_highest_that_is_allowed() -> None:
    assert prompt().priority == 0
    assert prompt(settings=RequestSettings(max_priority=5)).priority == 0
    assert prompt(settings=RequestSettings(max_priority=-3)).priority == -3
    with pytest.raises(InvalidRequest, match="higher than this server allows"):
        prompt(priority=0, settings=RequestSettings(max_priority=-3))


def test_a_priority_up_to_the_highest_allowed_is_taken() -> None:
    assert prompt(priority=-100).priority == -100
    assert prompt(priority=7, settings=RequestSettings(max_priority=7)).priority == 7
    with pytest.raises(InvalidRequest, match=r"8 is higher than this server allows \(7\)"):
        prompt(priority=8, settings=RequestSettings(max_priority=7))


def test_a_chat_counts_its_messages_too_when_it_is_asked_whether_it_is_quick() -> None:
    quick = Language(
        tokenizer=ByteTokenizer(), template=PlainTemplate(), context=100, names=frozenset(), quick_characters=512
    )
    assert quick.is_quick(Request(messages=(HELLO,)))
    assert not quick.is_quick(Request(messages=(ChatMessage("user", "x" * 500),)))
    assert not quick.is_quick(Request(messages=(ChatMessage("user", ""),) * 20))


def test_a_prompt_has_a_name_for_each_page_that_it_fills_unless_nothing_is_shared() -> None:
    assert prompt().prefix == ()
    shares = evolve(LANGUAGE, page_tokens=4)
    named = prepare(Request(messages=(HELLO,)), shares, RequestSettings())
    assert named.prefix == chain(named.tokens, 4)
    assert len(named.prefix) == len(named.tokens) // 4 > 0
