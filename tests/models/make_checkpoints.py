"""Makes tests/data/checkpoints: tiny random checkpoints and what the transformers library computes with them.

    pip install torch==2.13.0 transformers==5.24.0 && PYTHONPATH=. python tests/models/make_checkpoints.py [NAME ...]

Nothing else needs those two; without a name all are made.  Each folder is a checkpoint as `save_pretrained` writes it;
beside them `NAME.json` has tokens, the logits after some of them, and the ids of some texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter

from strata.testing.tiny_model import CHAT_TEMPLATE, SPECIAL, merges, vocabulary

OUT = Path(__file__).parents[1] / "data" / "checkpoints"
AFTER = (0, 1, 40, 63, 64, 119)
"""The places whose logits are kept."""
TEXTS = (
    "The quick brown fox, isn't it?  They'LL say 'yes' -- twice!",
    "In 2024, 3.14159 and 1 000 000; 0x7fff, 1st",
    "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4} na\u00efve e\u0301 n\u0303 \u6771\u4eac\u306f",
    "def f(x):\n\tif x:\n        return {'a': [1, 2]}\r\n\n\n#\tend  \n",
    " " * 70 + "\n" * 5 + "\t \t" * 5 + "x",
    "a\u00a0b\u2003c\u200bd\u3000e\u0085f\u2028g<|im_end|>h",
)

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.35,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}

WINDOWS = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}
"""The first layer sees all."""


def models() -> dict[str, tuple[Any, torch.dtype]]:
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    return {
        "llama": (LlamaConfig(**SIZES, rms_norm_eps=1e-5), torch.float32),
        "llama3": (LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True), torch.bfloat16),
        "qwen2": (Qwen2Config(**SIZES, tie_word_embeddings=True), torch.float32),
        "mistral": (MistralConfig(**SIZES, sliding_window=24, tie_word_embeddings=True), torch.bfloat16),
        "qwen2-windows": (Qwen2Config(**SIZES, **WINDOWS, tie_word_embeddings=True), torch.bfloat16),
        "yarn": (LlamaConfig(**SIZES, rope_parameters=YARN, tie_word_embeddings=True), torch.bfloat16),
        "qwen3": (Qwen3Config(**SIZES, head_dim=32), torch.float16),
    }


def make(name: str, config: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for part, weight in model.named_parameters():
            # As they come norms are ones and biases zeros, which would hide that they are left out.
            if "norm" in part:
                weight.uniform_(0.5, 1.5)
            elif part.endswith("bias"):
                weight.normal_(0, 0.5)
    model = model.to(dtype)
    model.save_pretrained(OUT / name, max_shard_size="200KB" if name == "llama" else "1GB")
    tokenizer = transformers.Qwen2Tokenizer(
        vocab={token: n for n, token in enumerate(vocabulary())},
        merges=[tuple(merge.split(" ")) for merge in merges()],
        eos_token=SPECIAL[2],
        unk_token=SPECIAL[0],
        pad_token=SPECIAL[0],
        additional_special_tokens=[SPECIAL[1]],
        chat_template=CHAT_TEMPLATE,
    )
    if not config.model_type.startswith("qwen"):
        pattern = Regex(TikTokenConverter().pattern)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.backend_tokenizer.normalizer = None
    tokenizer.save_pretrained(OUT / name)
    tokens = torch.randint(0, 300, (120,), generator=torch.Generator().manual_seed(3))
    # The weights as they are stored, computed with in float64.  Loaded anew: in `model` the angles were rounded too.
    stored = transformers.AutoModelForCausalLM.from_pretrained(OUT / name, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = stored(tokens[None]).logits[0]
    said = {
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "tokens": tokens.tolist(),
        "logits": {str(at): [round(float(one), 6) for one in logits[at]] for at in AFTER},
        "texts": [{"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in TEXTS],
    }
    (OUT / f"{name}.json").write_text(json.dumps(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name, (config, dtype) in models().items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            make(name, config, dtype)
