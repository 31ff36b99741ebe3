"""A llama model in plain float64, whole prompt at once, unpaged: what the real one is held against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strata.cpu.quantised import expand
from strata.models.config import ModelConfig, RawTensor


def reference_logits(config: ModelConfig, tensors: Mapping[str, RawTensor], tokens: list[int]) -> np.ndarray:
    """The logits after every token: (tokens, vocab_size)."""
    weights = {name: _numbers(tensor) for name, tensor in tensors.items()}
    x = weights["token_embd.weight"][tokens]
    for layer in range(config.layers):
        x = x + _attention(config, weights, f"blk.{layer}", x)
        x = x + _feed_forward(config, weights, f"blk.{layer}", x)
    head = weights["token_embd.weight" if config.tied else "output.weight"]
    return _norm(config, x, weights["output_norm.weight"]) @ head.T


def _numbers(tensor: RawTensor) -> np.ndarray:
    out = np.empty(tensor.shape, np.float32)
    expand(tensor, out.reshape(-1, tensor.shape[-1]))
    return out.astype(np.float64)


def _norm(config: ModelConfig, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_eps) * weight


def _attention(config: ModelConfig, weights: Mapping[str, np.ndarray], prefix: str, x: np.ndarray) -> np.ndarray:
    h = _norm(config, x, weights[f"{prefix}.attn_norm.weight"])
    queries, keys, values = (
        (h @ weights[f"{prefix}.attn_{name}.weight"].T).reshape(len(x), -1, config.head_dim) for name in "qkv"
    )
    queries, keys = _rotated(config, queries), _rotated(config, keys)
    group = config.heads // config.kv_heads
    out = np.empty_like(queries)
    later = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    for head in range(config.heads):
        scores = queries[:, head] @ keys[:, head // group].T / np.sqrt(config.head_dim) + later
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = shares @ values[:, head // group] / shares.sum(-1, keepdims=True)
    return out.reshape(len(x), -1) @ weights[f"{prefix}.attn_output.weight"].T


def _rotated(config: ModelConfig, x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for pair in range(config.rope_dim // 2):
        angles = np.arange(len(x))[:, None] * config.rope.theta ** (-2 * pair / config.rope_dim)
        left, right = x[..., 2 * pair], x[..., 2 * pair + 1]
        out[..., 2 * pair] = left * np.cos(angles) - right * np.sin(angles)
        out[..., 2 * pair + 1] = left * np.sin(angles) + right * np.cos(angles)
    return out


def _feed_forward(config: ModelConfig, weights: Mapping[str, np.ndarray], prefix: str, x: np.ndarray) -> np.ndarray:
    h = _norm(config, x, weights[f"{prefix}.ffn_norm.weight"])
    gate = h @ weights[f"{prefix}.ffn_gate.weight"].T
    up = h @ weights[f"{prefix}.ffn_up.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ weights[f"{prefix}.ffn_down.weight"].T
