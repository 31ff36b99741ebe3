"""Every bad setting refuses the start and names itself."""

import math

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.config import POLICIES, EngineSettings, Preempt, SchedulerSettings, Settings
from strata.errors import ConfigError


def test_a_policy_is_a_named_set_and_a_named_value_wins_over_it() -> None:
    assert Settings.of(policy="fifo").scheduler.preempt is Preempt.OFF
    assert Settings.of(policy="preempt").scheduler.max_running == 1
    assert Settings.of(policy="preempt", max_running=3).scheduler.max_running == 3
    assert Settings.of().policy == "batch"


def test_one_name_means_one_thing_in_every_room() -> None:
    settings = Settings.of(chunk_tokens=64)
    assert settings.scheduler.chunk_tokens == settings.engine.chunk_tokens == 64


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_built(policy: str) -> None:
    assert Settings.of(policy=policy).policy == policy


numbers = {field.name: field.default for field in attrs.fields(SchedulerSettings) if field.name != "preempt"}


@pytest.mark.parametrize("name", numbers)
@given(
    value=st.one_of(
        st.just(math.nan), st.just(math.inf), st.integers(max_value=-1), st.text(), st.booleans(), st.none()
    )
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    assume(value is not None or numbers[name] is not None)
    assume(not isinstance(value, bool) or not isinstance(numbers[name], bool))
    with pytest.raises(ConfigError) as refused:
        Settings.of(**{name: value})
    assert refused.value.setting == name
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "named", [{"max_runing": 3}, {"policy": "fastest"}, {"preempt": "sometimes"}, {"order_share": 1}]
)
def test_a_name_or_value_that_is_not_in_the_list_is_refused(named: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.of(**named)
    assert refused.value.setting in named


def test_numbers_of_sixteen_bits_are_for_a_card() -> None:
    assert Settings.of(device="cuda", activations="bf16").engine.activations == "bf16"
    for bad in ("bf16", "fp8"):
        with pytest.raises(ConfigError, match=r"^activations: "):
            Settings.of(activations=bad)


def test_a_library_for_products_is_for_numbers_of_sixteen_bits() -> None:
    card = {"device": "cuda", "activations": "f16"}
    assert [Settings.of(products=name, **card).engine.products for name in ("auto", "own", "cublas")]
    for bad in ({"products": "cublas"}, {"products": "cublas", "device": "cuda"}, {"products": "blas", **card}):
        with pytest.raises(ConfigError, match=r"^products: "):
            Settings.of(**bad)


def test_every_setting_says_what_it_is() -> None:
    for part in attrs.fields(Settings):
        if attrs.has(type(getattr(Settings(), part.name))):
            for field in attrs.fields(type(getattr(Settings(), part.name))):
                assert field.metadata.get("help"), field.name


def test_parts_that_name_different_grids_are_refused() -> None:
    with pytest.raises(ConfigError, match="the engine's is 512 and the scheduler's 64") as refused:
        Settings(scheduler=SchedulerSettings(chunk_tokens=64))
    assert refused.value.setting == "chunk_tokens"
    both = Settings(scheduler=SchedulerSettings(chunk_tokens=64), engine=EngineSettings(chunk_tokens=64))
    assert both.engine.chunk_tokens == 64


def test_processors_are_named_as_taskset_names_them() -> None:
    assert Settings.of(engine_cpus="0-2,7").hosting.cpus == (0, 1, 2, 7)
    assert Settings.of().hosting.cpus == ()
    for wrong in ("", "a", "3-1", "1,", "-1", "1;2"):
        with pytest.raises(ConfigError, match="engine_cpus"):
            Settings.of(engine_cpus=wrong)


def test_an_engine_lives_in_a_process_or_on_a_thread() -> None:
    assert Settings.of(engine_host="thread").hosting.engine_host == "thread"
    with pytest.raises(ConfigError, match="'moon' is not one of process, thread"):
        Settings.of(engine_host="moon")
