"""Makes tests/data/checkpoints/gemma3 and gemma3.gguf: a tiny random Gemma 3, and what transformers computes with it.

    pip install torch==2.13.0 transformers==5.24.0 sentencepiece==0.2.3
    PYTHONPATH=. python tests/models/make_gemma3.py

Nothing else needs those three.  The tokenizer is trained here with the settings of Gemma's own, and must agree with
SentencePiece itself.  The GGUF file is written by the gguf library with the keys, the names and the changes to norms
and tokens of llama.cpp's converter (https://github.com/ggml-org/llama.cpp, `convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
import torch
import transformers
from make_checkpoints import AFTER, OUT, TEXTS
from tokenizers import AddedToken
from transformers.convert_slow_tokenizer import generate_merges

NAME = "gemma3"
SPECIAL = ("<mask>", "<start_of_turn>", "<end_of_turn>")
RUNS = ("\n\n", "\n\n\n", "\t\t", "▁▁", "▁▁▁", "▁▁▁▁", "<table>")
"""Of Gemma's user-defined symbols: those that stand for themselves before anything is merged."""

CORPUS = """The quick brown fox jumps over the lazy dog, and the dog says that it isn't his day. They'll say yes twice.
def function(value):\\n    return [value for value in values if value is not None]
In the year 2024 there were 1 000 000 of them; the capital of the country is the largest city of the land.
user model system assistant answer question please write what is the thing that you are thinking of in this moment
"""

CHAT_TEMPLATE = """{{ bos_token }}
{%- set system = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}
{%- set turns = messages[1:] if system else messages -%}
{%- for turn in turns -%}
    {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('The roles must alternate') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\\n' }}
    {{- system if loop.first else '' }}
    {%- if turn['content'] is string -%}
        {{ turn['content'] | trim }}
    {%- elif turn['content'] is iterable -%}
        {%- for part in turn['content'] -%}{{ part['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
"""What Gemma's own does: the system's words go before the first turn's, and turns alternate."""

CHAT = (("system", "be brief"), ("user", " hi "), ("assistant", "yes"), ("user", "why?"))

MORE_TEXTS = (" a  b   c    d     e", "<start_of_turn>user\nhi<end_of_turn>\n", "\t\t\t\n\n\n\n<table>x</table>")


def trained() -> sentencepiece.SentencePieceProcessor:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines() * 3),
        model_writer=made,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=1.0,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        eos_piece="<eos>",
        bos_piece="<bos>",
        user_defined_symbols=[*SPECIAL, *RUNS],
    )
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def as_tokenizer(pieces: sentencepiece.SentencePieceProcessor) -> transformers.GemmaTokenizer:
    """As the library makes one of a `tokenizer.model`."""
    vocab = {pieces.id_to_piece(n): n for n in range(len(pieces))}
    scores = {token: pieces.get_score(n) for token, n in vocab.items() if n not in special(pieces)}
    tokenizer = transformers.GemmaTokenizer(
        vocab=vocab, merges=generate_merges(vocab, scores), chat_template=CHAT_TEMPLATE, add_bos_token=True
    )
    added = [AddedToken(token, special=token in SPECIAL, normalized=False) for token in (*SPECIAL, *RUNS)]
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_tokens([token for token in added if token.special], special_tokens=True)
    return tokenizer


def special(pieces: sentencepiece.SentencePieceProcessor) -> list[int]:
    return [n for n in range(len(pieces)) if pieces.is_control(n) or pieces.is_unknown(n) or pieces.is_byte(n)]


def model(vocab_size: int) -> Any:
    config = transformers.Gemma3TextConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=24,
        max_position_embeddings=2048,
        initializer_range=0.3,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        eos_token_id=[1, 6],
    )
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for part, weight in made.named_parameters():
            if "norm" in part:
                weight.uniform_(-0.5, 0.5)
    return made.to(torch.bfloat16)


def ids_of(tokenizer: Any, pieces: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """Of the library's tokenizer, which must be SentencePiece's own."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == pieces.encode(text), (text, ids, pieces.encode(text))
    return ids


# -- as GGUF ---------------------------------------------------------------------------------------------------------

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(made: Any, pieces: sentencepiece.SentencePieceProcessor, path: Path) -> None:
    config = made.config
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_name("Tiny random Gemma 3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_parameters["full_attention"]["factor"])
    writer.add_sliding_window(config.sliding_window)
    write_tokens(writer, pieces)
    for name, weight in tensors(made):
        writer.add_tensor(name, *weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(made: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, weight in made.state_dict().items():
        if name == "lm_head.weight":
            continue
        part, kind = name.removeprefix("model.layers.").rsplit(".", 1)
        layer, _, inside = part.partition(".")
        own = f"blk.{layer}.{TENSORS[inside]}" if layer.isdigit() else TENSORS[part]
        if name.endswith("norm.weight"):
            yield f"{own}.{kind}", ((weight.float() + 1).numpy(),)
        else:
            bits = weight.contiguous().view(torch.uint8).numpy()
            yield f"{own}.{kind}", (bits, None, gguf.GGMLQuantizationType.BF16)


def write_tokens(writer: gguf.GGUFWriter, pieces: sentencepiece.SentencePieceProcessor) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    everything = range(len(pieces))
    # What is defined by the user has its spaces there.
    tokens = [pieces.id_to_piece(n) for n in everything]
    writer.add_token_list([token.replace("▁", " ") if token in RUNS else token for token in tokens])
    writer.add_token_scores([pieces.get_score(n) for n in everything])
    writer.add_token_types([int(kind_of(pieces, n)) for n in everything])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def kind_of(pieces: sentencepiece.SentencePieceProcessor, n: int) -> gguf.TokenType:
    token = pieces.id_to_piece(n)
    if pieces.is_control(n) or token in SPECIAL:
        return gguf.TokenType.CONTROL
    if pieces.is_unknown(n):
        return gguf.TokenType.UNKNOWN
    if pieces.is_byte(n):
        return gguf.TokenType.BYTE
    return gguf.TokenType.USER_DEFINED if token in RUNS else gguf.TokenType.NORMAL


def main() -> None:
    pieces = trained()
    tokenizer, made = as_tokenizer(pieces), model(len(pieces))
    made.save_pretrained(OUT / NAME)
    tokenizer.save_pretrained(OUT / NAME)
    write_gguf(made, pieces, OUT / f"{NAME}.gguf")
    tokens = torch.randint(4, len(pieces), (120,), generator=torch.Generator().manual_seed(3))
    stored = transformers.AutoModelForCausalLM.from_pretrained(OUT / NAME, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = stored(tokens[None]).logits[0]
    chat = [{"role": role, "content": text} for role, text in CHAT]
    said = {
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__},"
        f" sentencepiece {sentencepiece.__version__}",
        "tokens": tokens.tolist(),
        "logits": {str(at): [round(float(one), 6) for one in logits[at]] for at in AFTER},
        "texts": [{"text": text, "ids": ids_of(tokenizer, pieces, text)} for text in (*TEXTS, *MORE_TEXTS)],
        "begins": tokenizer("a")["input_ids"][:1],
        "chat": tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False),
    }
    (OUT / f"{NAME}.json").write_text(json.dumps(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
