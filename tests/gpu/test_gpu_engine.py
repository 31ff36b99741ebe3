"""The whole engine on an emulated card: the processor's tokens, and the same bits whatever happens between."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import gguf
import numpy as np
import pytest
from drive import CHUNK, GREEDY, Drive, prompt
from parity import DISTURBANCES, MOVES, PROMPT, Disturb, Held, Run, another, same
from reads import logits_of

from strata.config import Settings
from strata.cpu.ops import CpuOps
from strata.engine.from_file import make_engine
from strata.errors import ConfigError, DeviceFault, ModelError
from strata.gpu.arrays import DeviceArray
from strata.gpu.cublas import Cublas, Library
from strata.gpu.device import Device
from strata.gpu.ops import RESERVE, GpuOps
from strata.messages import Sampling, Seq
from strata.models import open_model
from strata.models.make import make_model
from strata.testing.tiny_model import write_tiny_model

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "golden_smollm2.json").read_text())

MakeDevice = Callable[..., Device]


CHECKPOINTS = Path(__file__).parents[1] / "data" / "checkpoints"


@pytest.fixture(scope="module", params=["F32", "Q4_1", "Q8_0", "qwen2", "qwen3", "gemma3.gguf"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other families have biases, norms of heads, and windows."""
    if (CHECKPOINTS / request.param).exists():
        return CHECKPOINTS / request.param
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_model(folder / "tiny.gguf", kind=request.param)


@pytest.fixture(scope="module")
def warm(make_device: MakeDevice, tiny_model_path: Path) -> Iterator[Drive]:
    """An engine that has served others, whose pages and workspaces are full of what they left."""
    drive = Drive(make_model(open_model(tiny_model_path), GpuOps(make_device)))
    another(8)(drive, Seq(0))
    yield drive
    drive.engine.close()


@pytest.fixture(scope="module")
def undisturbed(warm: Drive) -> Run:
    return Run(warm)


@pytest.fixture
def kept(driver: ctypes.CDLL, fake_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cubins go beside the emulated driver, as what the engine makes by itself is kept with the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake_folder / "cache"))


def greedy(drive: Drive, length: int) -> list[int]:
    seq = Seq(length)
    drive.open(seq, prompt(seq, length))
    drive.step(read=seq)
    drive.run(lambda: bool(drive.ended(seq)))
    return drive.tokens(seq)


def test_a_card_writes_the_tokens_that_the_processor_writes(make_device: MakeDevice, path: Path) -> None:
    card = Drive(make_model(open_model(path), GpuOps(make_device)))
    processor = Drive(make_model(open_model(path), CpuOps(1)))
    for length in (1, 64, 100):
        assert greedy(card, length) == greedy(processor, length)
    card.engine.close()
    processor.engine.close()


@pytest.mark.parametrize(
    "disturb",
    [DISTURBANCES["nothing"], another(0), another(3), MOVES["its_pages_are_used_meanwhile"]],
    ids=["none", "half read", "another", "moved"],
)
def test_a_park_after_any_slice_or_step_changes_no_bit(warm: Drive, undisturbed: Run, disturb: Disturb) -> None:
    """B54: all of it, keys and values too; moved to the host and back as well."""
    same(Run(warm, dict.fromkeys(range(1, len(undisturbed.prints) + 1), disturb)), undisturbed)


@pytest.mark.parametrize(
    ("number", "disturb"), [("f16", MOVES["its_pages_are_used_meanwhile"]), ("bf16", another(0))], ids=["f16", "bf16"]
)
def test_in_tensor_cores_too_a_park_after_any_slice_changes_no_bit(
    make_device: MakeDevice, tiny_model_path: Path, undisturbed: Run, number: str, disturb: Disturb
) -> None:
    """B54: of keys and values of 16 bits, moved to the host and back as well; and they are others than in float32."""
    card = Drive(make_model(open_model(tiny_model_path), GpuOps(make_device, number)))
    run = Run(card)
    same(Run(card, dict.fromkeys(range(1, len(run.prints) + 1), disturb)), run)
    assert run.prints[-1]["kv"] != undisturbed.prints[-1]["kv"]
    card.engine.close()


@pytest.mark.parametrize(("number", "digits"), [("f16", 11), ("bf16", 8)])
def test_logits_of_what_was_read_in_tensor_cores_are_those_of_float32_nearly(
    make_device: MakeDevice, tiny_model_path: Path, number: str, digits: int
) -> None:
    exact, rounded = (logits_of(tiny_model_path, GpuOps(make_device, numbers)) for numbers in ("f32", number))
    off = float(np.linalg.norm(exact - rounded) / np.linalg.norm(exact))
    assert 0 < off < 8 * 2.0**-digits


LOUD = 40
"""A token that no prompt here has, unless it is put there."""


def loud(writer: gguf.GGUFWriter) -> None:
    """That token alone has a first number, which makes its row between the first layer's matrices ten million."""
    weights = {name: info.tensor for part in writer.tensors for name, info in part.items()}
    weights["token_embd.weight"][:, 0] = 0
    weights["token_embd.weight"][LOUD, 0] = 100
    for layer in range(2):
        for name in ("attn_output", "ffn_down"):
            weights[f"blk.{layer}.{name}.weight"][0] = 0
    weights["blk.0.ffn_gate.weight"][:, 0], weights["blk.0.ffn_up.weight"][:, 0] = 5, 3e4


@pytest.mark.parametrize(
    ("numbers", "error"), [("f16", "the model's logits are not finite"), ("bf16", None), ("f32", None)]
)
def test_a_row_that_float16_cannot_hold_fails_its_request_by_name_and_no_other(
    make_device: MakeDevice, tmp_path: Path, numbers: str, error: str | None
) -> None:
    """B33: another's answer, written while that is read, is what it is alone.  Other numbers reach further."""
    model = open_model(write_tiny_model(tmp_path / "loud.gguf", change=loud))
    drive = Drive(make_model(model, GpuOps(make_device, numbers)))
    answers = []
    for seq, beside in ((Seq(1), None), (Seq(2), Seq(3))):
        drive.open(seq, prompt(1, 20), attrs.evolve(GREEDY, max_tokens=12))
        drive.step(read=seq)
        drive.until_written(seq, 3)
        if beside is not None:
            drive.open(beside, (*prompt(2, 30), LOUD, *prompt(3, 9)))
            drive.step(seq, read=beside)
            drive.run(lambda beside=beside: bool(drive.error(beside) or drive.rows(beside)))
            assert drive.error(beside) == error
        drive.step(seq)
        drive.until_written(seq, 11)
        answers.append((drive.tokens(seq), drive.engine.fingerprint(seq)))
        drive.run()
    assert answers[0] == answers[1]
    drive.engine.close()


class AllLogits(GpuOps):
    def draw(self, _: object, draws: Sequence[object], __: object) -> list[None]:
        return [None] * len(draws)


class Counted(GpuOps):
    copies = 0

    def numbers(self, array: DeviceArray) -> np.ndarray:
        self.copies += 1
        return super().numbers(array)


CHOSEN = (
    attrs.evolve(GREEDY, max_tokens=5),
    Sampling(temperature=0.9, top_k=20, top_p=0.9, seed=3, ignore_eos=True, max_tokens=5),
    Sampling(temperature=3.0, top_k=64, min_p=0.1, seed=4, ignore_eos=True, max_tokens=5),
    Sampling(seed=5, ignore_eos=True, max_tokens=5),
    Sampling(temperature=1.5, top_p=0.7, seed=6, ignore_eos=True, max_tokens=5),
)
OF_ALL = (
    attrs.evolve(GREEDY, frequency_penalty=0.5, max_tokens=5),
    attrs.evolve(GREEDY, max_tokens=5, logprobs=2),
)


def chosen(
    make_device: MakeDevice, path: Path, ops: type[GpuOps], samplings: tuple[Sampling, ...]
) -> tuple[object, int]:
    """The rows that they write together, and how often numbers of rows were copied in that."""
    made = ops(make_device)
    drive = Drive(make_model(open_model(path), made))
    seqs = [Seq(at) for at in range(len(samplings))]
    for seq, sampling in zip(seqs, samplings, strict=True):
        drive.open(seq, prompt(seq, 9), sampling)
        drive.step(read=seq)
        drive.until_written(seq, 1)
    before = getattr(made, "copies", 0)
    drive.step(*seqs)
    drive.run()
    rows = [row for seq in seqs for row in drive.rows(seq)]
    drive.engine.close()
    return rows, getattr(made, "copies", 0) - before


def test_a_token_that_the_card_draws_is_the_one_that_the_host_draws(
    make_device: MakeDevice, tiny_model_path: Path
) -> None:
    """Beside rows whose logits are needed; without such rows none are copied."""
    for samplings, copied in ((CHOSEN, 0), (CHOSEN + OF_ALL, 8)):
        rows, copies = chosen(make_device, tiny_model_path, Counted, samplings)
        assert rows == chosen(make_device, tiny_model_path, AllLogits, samplings)[0]
        assert copies == copied


@pytest.mark.parametrize("numbers", ["f32", "f16"])
def test_after_the_rehearsal_no_kernel_is_compiled(
    make_device: MakeDevice, tiny_model_path: Path, find_cublas: Callable[..., Library], numbers: str
) -> None:
    """Nor loaded, whatever a request asks for.  Pages and workspaces are free afterwards."""
    made: list[Device] = []

    def make() -> Device:
        made.append(make_device())
        return made[0]

    ops = GpuOps(make, numbers, lambda device: Cublas(find_cublas(), device) if numbers == "f16" else None)
    drive = Drive(make_model(open_model(tiny_model_path), ops))
    before = drive.engine.usage()
    drive.engine.rehearse()
    assert drive.engine.usage() == before
    loaded = set(made[0]._launchers)
    seqs = [Seq(at) for at in range(len(CHOSEN + OF_ALL))]
    for seq, sampling in zip(seqs, CHOSEN + OF_ALL, strict=True):
        drive.open(seq, prompt(seq, 9), sampling)
        drive.step(read=seq)
        drive.until_written(seq, 1)
    drive.step(*seqs)
    drive.run()
    assert set(made[0]._launchers) == loaded
    drive.engine.close()


class ToldOneByOne(GpuOps):
    def recorder(self) -> None:
        return None


def test_a_step_that_is_replayed_has_the_bits_of_its_launches(
    make_device: MakeDevice, tiny_model_path: Path, undisturbed: Run
) -> None:
    """B54: a request's first step is told, its second captured, its others replayed."""
    told = Drive(make_model(open_model(tiny_model_path), ToldOneByOne(make_device)))
    same(Run(told), undisturbed)
    told.engine.close()


def test_a_replayed_step_is_three_calls_from_the_host(driver: ctypes.CDLL, warm: Drive) -> None:
    """The tokens' rows, a graph, and the drawing: two of them are launches."""
    seq = Seq(700)
    warm.open(seq, prompt(seq, 10), attrs.evolve(GREEDY, max_tokens=6))
    warm.step(read=seq)
    warm.until_written(seq, 3)
    before = driver.fakecuda_launched()
    warm.until_written(seq, 6)
    assert driver.fakecuda_launched() - before == 3 * 2


def test_decoding_beside_others_changes_no_bit(warm: Drive, undisturbed: Run) -> None:
    """B54: at every number of rows from one to eight."""
    others = [Seq(900 + number) for number in range(7)]
    for seq in others:
        warm.open(seq, prompt(seq, 10), attrs.evolve(GREEDY, max_tokens=3 + int(seq) - 900))
        warm.step(read=seq)
        warm.until_written(seq, 1)

    def together(drive: Drive, _: Seq) -> None:
        drive.step(*others)

    run = Run(warm, dict.fromkeys(range(1, len(undisturbed.prints) + 1), together))
    assert run.prints == undisturbed.prints
    warm.step(*others)
    warm.run()


@pytest.mark.parametrize("case", GOLDENS["cases"][:2], ids=lambda case: case["prompt"][:20])
def test_the_first_token_of_smollm2_is_the_golden_one(
    make_device: MakeDevice, default_model_path: Path, case: dict[str, list[int]]
) -> None:
    drive = Drive(make_model(open_model(default_model_path), GpuOps(make_device)), pages=12)
    seq = Seq(1)
    drive.open(seq, case["prompt_ids"], attrs.evolve(GREEDY, max_tokens=1))
    drive.step(read=seq)
    drive.run(lambda: bool(drive.ended(seq)))
    assert drive.tokens(seq) == case["greedy_ids"][:1]
    drive.engine.close()


def test_a_newer_step_waits_for_a_few_slices_and_not_for_all_that_a_chunk_has(
    driver: ctypes.CDLL, make_device: MakeDevice, tmp_path: Path
) -> None:
    """What is queued on the card can't be taken back."""
    path = write_tiny_model(tmp_path / "deep.gguf", layers=8)
    drive = Drive(make_model(open_model(path), GpuOps(make_device)))
    drive.open(Seq(1), prompt(1, CHUNK))
    drive.step(read=Seq(1))
    waiting = []
    while not drive.rows(Seq(1)):
        drive.advance()
        waiting.append(driver.fakecuda_waiting())
    drive.engine.close()
    assert len(waiting) == 8
    assert max(waiting) < 4 * 12, "three slices of a dozen launches each, and not eight"


# -- memory -------------------------------------------------------------------------------------------------------


def pages_with(memory: int, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> int:
    monkeypatch.setenv("FAKECUDA_MEMORY", str(memory))
    engine = make_engine(open_model(path), Settings.of(device="cuda", max_running=4096, **settings))
    try:
        return engine.ready(1).pages
    finally:
        engine.close()


@pytest.mark.parametrize(("number", "size"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_pages_get_what_is_free_beside_the_reserve(
    kept: None, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, size: int
) -> None:
    """All of it: a card is ours alone.  64 MiB more make exactly as many pages more, which are smaller in 16 bits."""
    small, settings = RESERVE + (600 << 20), {"page_tokens": 64, "activations": number}
    page = 64 * 2 * 2 * 32 * size
    fewer = pages_with(small, tiny_model_path, monkeypatch, **settings)
    more = pages_with(small + (64 << 20), tiny_model_path, monkeypatch, **settings)
    assert more - fewer in (64 * 2**20 // page, 64 * 2**20 // page + 1)


@pytest.mark.parametrize(("number", "size"), [("f32", 4), ("bf16", 2)])
def test_a_page_takes_on_a_card_as_much_memory_as_is_said(
    make_device: MakeDevice, tiny_model_path: Path, number: str, size: int
) -> None:
    """And an engine says it to others."""
    drive = Drive(make_model(open_model(tiny_model_path), GpuOps(make_device, number)))
    state = drive.model.state_parts(Held([0]), drive.page)["kv"]
    assert drive.engine.ready(1).page_bytes == sum(piece.nbytes for piece in state) == 2 * 2 * 32 * size * drive.page
    drive.engine.close()


def test_a_model_that_does_not_fit_refuses_the_start_with_sizes(
    kept: None, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B37: on a card with little memory, or one that others have filled."""
    monkeypatch.setenv("FAKECUDA_MEMORY", str(RESERVE))
    with pytest.raises(ModelError, match=r"0\.00 GiB are free"):
        make_engine(open_model(tiny_model_path), Settings.of(device="cuda"))
    monkeypatch.setenv("FAKECUDA_MEMORY", str(1 << 20))
    with pytest.raises(ModelError, match=r"not enough memory to start \(the device emulated has no memory left to"):
        make_engine(open_model(tiny_model_path), Settings.of(device="cuda"))


def test_a_fault_ends_the_engine_and_not_one_sequence_alone(
    driver: ctypes.CDLL,
    make_device: MakeDevice,
    tiny_model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B35: while it reads."""
    monkeypatch.setenv("FAKECUDA_FAULT", str(tmp_path / "fault"))
    drive = Drive(make_model(open_model(tiny_model_path), GpuOps(make_device)))
    drive.open(Seq(1), PROMPT)
    drive.step(read=Seq(1))
    drive.advance()
    (tmp_path / "fault").write_text("719")
    with pytest.raises(DeviceFault, match="could not"):
        drive.run()
    assert drive.error(Seq(1)) is None
    drive.engine.close()
    driver.fakecuda_heal()


@pytest.mark.parametrize("value", ["gpu", "cuda:1", ""])
def test_a_device_that_there_is_not_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^device: "):
        Settings.of(device=value)
