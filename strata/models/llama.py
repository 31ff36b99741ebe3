"""Families whose layers are llama's, but for a bias or a norm."""

from __future__ import annotations

from typing import Final

from strata.models.family import Family

LLAMA: Final = Family(name="llama", model_types=("llama", "mistral"))

QWEN2: Final = Family(name="qwen2", model_types=("qwen2",), halves=True, qkv_bias=True, windowed=False)
"""https://arxiv.org/abs/2407.10671"""

QWEN3: Final = Family(name="qwen3", model_types=("qwen3",), halves=True, qk_norm=True, windowed=False)
"""https://arxiv.org/abs/2505.09388"""
