"""The index beside a model file: believed only when it is right, and never missed when it is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.models import ModelFile, open_model
from strata.models.config import Rope
from strata.models.index import Index, has_index, load_index, save_index
from strata.testing.tiny_model import write_tiny_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


def beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.strata-index")


def same(one: ModelFile, other: ModelFile) -> bool:
    text = "<|im_start|>hello world 123"
    return (
        (one.config, one.sha256, one.quantisation) == (other.config, other.sha256, other.quantisation)
        and one.tokenizer.encode(text) == other.tokenizer.encode(text)
        and {n: t.data.tobytes() for n, t in one.tensors.items()}
        == {n: t.data.tobytes() for n, t in other.tensors.items()}
    )


def known(path: Path) -> Index:
    index = load_index(path)
    assert index is not None
    return index


def test_a_later_opening_reads_the_index_and_never_the_metadata(path: Path) -> None:
    first = open_model(path)
    made = beside(path).stat().st_mtime_ns
    assert same(first, open_model(path))
    assert beside(path).stat().st_mtime_ns == made
    code = "import sys; from pathlib import Path; from strata.models import open_model; open_model(Path(sys.argv[1])); "
    code += "assert 'gguf' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)


def test_a_file_that_was_replaced_gets_a_new_index(path: Path) -> None:
    before = open_model(path)
    write_tiny_model(path, seed=1)
    os.utime(path, ns=(1, 1))
    after = open_model(path)
    assert after.size_bytes == before.size_bytes
    assert after.sha256 != before.sha256
    assert same(after, open_model(path))
    assert known(path).mtime_ns == 1


def test_a_copy_with_its_index_is_believed_by_its_hash(path: Path, tmp_path: Path) -> None:
    open_model(path)
    copy = tmp_path / "elsewhere" / "tiny.gguf"
    copy.parent.mkdir()
    shutil.copyfile(path, copy)
    shutil.copyfile(beside(path), beside(copy))
    os.utime(copy, ns=(5, 5))
    assert known(copy) == evolve(known(path), mtime_ns=5)
    assert same(open_model(copy), open_model(path))


@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=25, deadline=None)
def test_an_index_that_was_damaged_anywhere_is_made_again(
    tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory, share: float, flip: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "tiny.gguf"
    shutil.copyfile(tiny_model_path, path)
    open_model(path)
    good = beside(path).read_bytes()
    place = int(len(good) * share)
    bad = good[:place] if cut else good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :]
    beside(path).write_bytes(bad)
    assert load_index(path) is None
    assert same(open_model(path), open_model(tiny_model_path))
    assert beside(path).read_bytes() == good


def test_an_index_that_lies_about_its_file_is_made_again(path: Path) -> None:
    good = open_model(path)
    index = known(path)
    first, *rest = index.tensors
    lies = (
        evolve(index, tensors=(evolve(first, offset=index.size - 1), *rest)),
        evolve(index, tensors=(evolve(first, offset=-1), *rest)),
        evolve(index, tensors=(evolve(first, shape=(1, 1)), *rest)),
        evolve(index, tensors=(evolve(first, kind="Q9_9"), *rest)),
        evolve(index, tensors=()),
        evolve(index, tokenizer_json="{}"),
        evolve(index, chat_template="{% if %}"),
        evolve(index, config=evolve(index.config, layers=1 << 40)),
        evolve(index, config=evolve(index.config, context=1 << 31)),
        evolve(index, config=evolve(index.config, context=0)),
        evolve(index, config=evolve(index.config, rope_dim=18)),
        evolve(index, config=evolve(index.config, rope_dim=3)),
        evolve(index, config=evolve(index.config, rms_eps=float("nan"))),
        evolve(index, config=evolve(index.config, rope=Rope(-1.0))),
        evolve(index, config=evolve(index.config, eos_ids=frozenset({307}))),
        evolve(index, config=evolve(index.config, bos_id=-1)),
    )
    for lie in lies:
        save_index(path, lie)
        assert same(open_model(path), good)
        assert known(path) == index


def test_an_index_of_another_build_or_kind_is_made_again(path: Path) -> None:
    good = open_model(path)
    for foreign in (b"", b"strata model index 0\n" + bytes(32), b"\x00" * 1000):
        beside(path).write_bytes(foreign)
        assert load_index(path) is None
        assert same(open_model(path), good)


def test_where_the_folder_cannot_be_written_the_index_goes_to_the_users_cache(path: Path, tmp_path: Path) -> None:
    # A folder in its place: nothing can be written there, whoever the user is.
    beside(path).mkdir()
    cache = tmp_path / "cache"
    code = "import sys; from pathlib import Path; from strata.models import open_model; open_model(Path(sys.argv[1])); "
    code += "print('gguf' in sys.modules)"

    def start(cache: Path) -> str:
        env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert [start(cache), start(cache)] == ["True", "False"]
    assert len(list((cache / "strata" / "indexes").iterdir())) == 1
    # And where nothing can be written at all, each start reads the metadata, and works.
    nowhere = path / "below a file"
    assert [start(nowhere), start(nowhere)] == ["True", "True"]


def test_many_first_openings_at_once_all_succeed_and_leave_one_index(path: Path) -> None:
    opened: list[ModelFile] = []
    threads = [threading.Thread(target=lambda: opened.append(open_model(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6
    assert all(same(model, opened[0]) for model in opened)
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.strata-index"]


@pytest.mark.parametrize("path", [".", "/", "..", f"/tmp/{250 * 'x'}.gguf"])
def test_what_has_no_name_or_a_long_one_has_no_index(path: str) -> None:
    assert not has_index(Path(path))
