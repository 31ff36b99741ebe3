"""The loop beside a real tokenizer: the default model's, over a real socket, with bodies as large as they may be."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio
from api_call import CHAT, chat
from loop_watch import least_blocked
from test_api_limits import LONGEST_BLOCK_S, MIB, fetch

from strata.http.app import create_app
from strata.http.serving import serve
from strata.runtime import open_runtime

TEXTS = {
    "words": "The quick brown fox, it is said, jumps over 13 lazy dogs.\n",
    "no spaces": "abcdefghij",
    "other scripts": "Übergrößenträger 東京都庁舎 здравствуйте 👩‍👩‍👧‍👦 ",
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("size", [4 * MIB, MIB // 2])
async def test_the_loop_goes_on_while_a_large_prompt_is_taken_in(
    default_model_path: Path, kind: str, size: int
) -> None:
    """B61: too long for the context, which at the smaller size only the tokenizer can tell."""
    text = TEXTS[kind]
    encoded = len(json.dumps(text, ensure_ascii=False).encode()) - len('""')
    body = json.dumps(chat(text * ((size - 200) // encoded)), ensure_ascii=False).encode()
    assert size - 500 < len(body) < size
    async with open_runtime(default_model_path, kv_mib=64, port=0) as runtime, trio.open_nursery() as nursery:
        address, *_ = await nursery.start(partial(serve, create_app(runtime), runtime.settings.serve))
        port = int(address.rpartition(":")[2])

        async def post() -> None:
            got = await fetch(port, "POST", CHAT, body)
            assert (got.status, json.loads(got.body)["error"]["code"]) == (400, "context_length_exceeded")

        blocked = await least_blocked(post, enough_s=LONGEST_BLOCK_S)
        nursery.cancel_scope.cancel()
    assert blocked < LONGEST_BLOCK_S
