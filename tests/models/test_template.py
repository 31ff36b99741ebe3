"""Chats as text: equal to the reference's, and no template can hang or escape."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from strata.errors import InvalidRequest, ModelError
from strata.messages import ChatMessage
from strata.models import open_model
from strata.models.template import ChatTemplate

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_smollm2.json").read_text())["cases"]

HI = (ChatMessage("user", "hi"),)

DOUBLINGS = [
    "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = "
    + twice
    + " %}{% endfor %}{{ ns.x | length }}"
    for twice in (
        "ns.x ~ ns.x",
        "ns.x + ns.x",
        "'%s%s' % (ns.x, ns.x)",
        "'%s%s' | format(ns.x, ns.x)",
        "'{}{}'.format(ns.x, ns.x)",
        "'{0}{0}'.format(ns.x)",
        "[ns.x, ns.x] | join",
        "''.join([ns.x, ns.x])",
        "ns.x | replace('a', 'aa')",
        "ns.x.replace('', 'a')",
        "[ns.x, ns.x] | tojson",
        "[ns.x, ns.x] | string",
        "ns.x | list + ns.x | list",
        "(ns.x | indent(ns.x, true)) ~ '\n'",
    )
] + [
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}" + use
    for use in ("{{ ns.x }}", "{{ ns.x ~ '' }}", "{{ ns.x | tojson }}", "{{ '%s' % ns.x }}", "{{ ns.x | trim }}")
]
"""Templates that are short and make something that is twice as long each round."""


def test_a_chat_becomes_the_text_and_the_tokens_of_the_reference(default_model_path: Path, tmp_path: Path) -> None:
    # Under a name of its own the file has no index yet: once by its metadata, once by the index.
    (tmp_path / "fresh.gguf").symlink_to(default_model_path)
    for _ in range(2):
        model = open_model(tmp_path / "fresh.gguf")
        for case in GOLDEN:
            rendered = model.template.render([ChatMessage("user", case["prompt"])])
            assert rendered == case["rendered"]
            assert model.tokenizer.encode(rendered) == case["prompt_ids"]
            assert b"".join(map(model.tokenizer.token_bytes, case["greedy_ids"])) == case["text"].encode()


def test_a_system_message_takes_the_place_of_the_templates_own(default_model_path: Path) -> None:
    template = open_model(default_model_path).template
    text = template.render([ChatMessage("system", "Be brief."), *HI], add_generation_prompt=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_whitespace_around_blocks_is_trimmed_as_the_models_were_trained() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(HI) == "hi\n"


def test_a_template_has_what_transformers_offers_it() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m | tojson }}"
        "{% endfor %}{{ eos_token }}{{ strftime_now('%Y') | length }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    assert template.render([ChatMessage("user", "<é>", name="Zoë"), *HI]) == (
        '<s>{"role": "user", "content": "<é>", "name": "Zoë"}</s>4TrueTrue'
    )


def test_a_template_that_refuses_the_messages_is_the_clients_mistake() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(HI)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source", ["{{ missing.field }}", "{{ messages[5].content }}", "{{ 1 / 0 }}", "{{ messages + 1 }}"]
)
def test_a_template_that_fails_on_the_messages_raises_no_other_error(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
    ],
)
def test_a_template_reaches_nothing_outside_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for m in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' ~ ('%99d' | format(a)) }}{% endfor %}",
        "{{ 'x' * 9999999999 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ range(10 ** 9) | list }}",
        *DOUBLINGS,
        "{{ ('%50000000d' % 1) | length }}",
        "{{ ('%*d' % (50000000, 1)) | length }}",
        "{{ ('%50000000d' | format(1)) | length }}",
        "{{ '{:>50000000}'.format(1) | length }}",
        "{{ '{:>{}}'.format(1, 50000000) | length }}",
        "{{ 'x' | center(50000000) | length }}",
        "{{ ['x'] | map('center', 50000000) | join | length }}",
        "{{ 'x'.ljust(50000000) | length }}",
        "{{ (1).to_bytes(50000000) | length }}",
        "{{ 'a\tb'.expandtabs(50000000) | length }}",
        "{{ 'a\nb' | indent(50000000) | length }}",
        "{{ [1] | batch(50000000, 'x') | list | length }}",
        "{{ [1, [2]] | tojson(indent=50000000) | length }}",
        "{{ strftime_now('%50000000d') | length }}",
        "{{ lipsum(50000000) | length }}",
        "{% for i in range(300) %}{{ range(100000) | list | length }}{% endfor %}",
        "{% for i in range(300) %}{{ cycler(*range(100000)) is none }}{% endfor %}",
        "{% for i in range(300) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        "{{ range(100000) | map('string') | join | length }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro m() %}{% for i in range(4999) %}" + "long" * 5000 + "{% endfor %}{% endmacro %}{{ m() | length }}",
    ],
)
def test_a_template_that_would_not_end_is_stopped(source: str) -> None:
    """However it would take time or memory: little is taken of either until it is."""
    template = ChatTemplate(source)
    tracemalloc.start()
    started = time.thread_time()
    with pytest.raises(InvalidRequest):
        template.render(HI)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20
    assert time.thread_time() - started < 1.0


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = ChatTemplate("{% for a in range(30) %}{% for b in range(30) %}{% endfor %}{% endfor %}ok")
    assert [template.render(HI) for _ in range(2)] == ["ok", "ok"]


def test_a_long_chat_is_no_runaway() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert len(template.render(HI * 50_000)) == 50_000 * len("user: hi\n")


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' | no_such_filter }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"])
def test_what_is_no_template_is_refused_at_the_start(source: str) -> None:
    """B37"""
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate(source)
