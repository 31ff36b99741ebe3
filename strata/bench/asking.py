"""Questions of so many tokens for a runtime, each new to it, so that no prefix cache answers.  Measures nothing."""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from typing import Final

from strata.runtime import Runtime, Stream

WORDS: Final = ("river", "stone", "market", "signal", "garden", "copper", "winter", "engine", "letter", "bridge")
SHORT_WORDS: Final = 20
LONG_TOKENS: Final = 4096
"""A long prompt has as many, or half of the context."""
LONG_ANSWER: Final = 400


class Asker:
    """Asks one runtime; what it asks is the same for the same seed."""

    def __init__(self, runtime: Runtime, *, seed: int = 1) -> None:
        self._runtime = runtime
        self._dice = random.Random(seed)
        self._long_words = 0
        self.longest_answer = min(LONG_ANSWER, runtime.model.context // 4)

    async def measure_words(self) -> None:
        """Find out how many tokens words are, which the model decides; before the first long question.

        What is asked for that also warms the engine up.
        """
        sizes = []
        for words in (SHORT_WORDS, 3 * SHORT_WORDS):
            async with self._ask(words, 1) as stream:
                await stream.text()
                sizes.append(stream.figures().prompt_tokens)
        each = (sizes[1] - sizes[0]) / (2 * SHORT_WORDS)
        room = min(LONG_TOKENS, self._runtime.model.context // 2)
        self._long_words = max(1, int((room - sizes[0]) / each))

    def short(self, answer: int = 1) -> AbstractAsyncContextManager[Stream]:
        return self._ask(SHORT_WORDS, answer)

    def long(self, answer: int = 1) -> AbstractAsyncContextManager[Stream]:
        return self._ask(self._long_words, answer)

    def _ask(self, words: int, answer: int) -> AbstractAsyncContextManager[Stream]:
        text = " ".join(self._dice.choice(WORDS) for _ in range(words))
        message = {"role": "user", "content": text}
        return self._runtime.chat([message], max_tokens=answer, temperature=0, ignore_eos=True)
