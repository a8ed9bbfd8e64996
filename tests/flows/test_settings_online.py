"""Settings of the online rounds: what nothing would read is refused, and the papers' values are the defaults."""

from typing import Any

import pytest

from ratchet.credit import ESTIMATORS
from ratchet.errors import RatchetError
from ratchet.settings import load, render_params
from ratchet.settings_online import PUBLISHED
from ratchet.yaml_files import read_yaml
from tests.flows.conftest import CHECKOUT

REFUSED = [
    (["evolve_online.gigpo.omega=2"], "--set: evolve_online.gigpo.omega: 2.0 is read by credit=gigpo alone, and credit is grpo; set evolve_online.credit"),
    (["evolve_online.credit=gigpo", "evolve_online.hgpo.k=3"], "evolve_online.hgpo.k: 3 is read by credit=hgpo alone, and credit is gigpo"),
    (["evolve_online.empg.zeta=0.1"], "set evolve_online.credit to empg, or leave this at 0.05"),
    (["evolve_online.credit=rloo", "evolve_online.dapo.batches=5"], "evolve_online.dapo.batches: 5 is read by credit=dapo alone"),
    (["evolve_online.credit=dapo", "evolve_online.dapo.batches=1"], "evolve_online.dapo.batches: 1 is refused"),
    (["evolve_online.credit=dapo", "evolve_online.dapo.overlong_buffer=1.5"], "evolve_online.dapo.overlong_buffer: 1.5 is refused"),
    (["evolve_online.credit=empg", "evolve_online.temperature=0"], "evolve_online.temperature: 0 is refused"),
    (["evolve_online.credit=hgpo", "evolve_online.hgpo.k=-1"], "evolve_online.hgpo.k: -1 is refused"),
    (["evolve_online.credit=gpo"], "evolve_online.credit: 'gpo' is refused"),
    (["evolve_online.echo.weight=-1"], "evolve_online.echo.weight: -1 is refused"),
    (["evolve_online.echo=0.05"], "evolve_online.echo: 0.05 is refused"),
    (["evolve_online.forecast.horizon=-1"], "evolve_online.forecast.horizon: -1 is refused"),
    (["evolve_online.forecast.weight=-0.01"], "evolve_online.forecast.weight: -0.01 is refused"),
    (["evolve_online.forecast.prefixes=0"], "evolve_online.forecast.prefixes: 0 is neither `all` nor a number from 1"),
    (["evolve_online.forecast.prefixes=some"], "evolve_online.forecast.prefixes: some is neither `all` nor a number from 1"),
    (["evolve_online.forecast.gate=losses"], "evolve_online.forecast.gate: 'losses' is refused"),
    (["evolve_online.forecast.weight=0.01", "evolve_online.batch_tokens=1000"],
     "evolve_online.batch_tokens: 1000 is below 2620, one episode of env.max_tokens=640 with its forecasts; raise it to that, lower evolve_online.forecast.prefixes"),
    (["evolve_online.forecast.weight=0.01", "evolve_online.forecast.packing=separate", "evolve_online.batch_tokens=640"], "640 is below 644"),
    (["evolve_online.balance=stratum"], "evolve_online.balance: stratum weighs terms that learn from successes, and all are off; set evolve_online.success_sft.weight"),
    (["evolve_online.null_policy=leave_out"], "alfworld names no null_action, an action that does nothing; set it to keep"),
]


@pytest.fixture
def params() -> dict[str, Any]:
    value = read_yaml(CHECKOUT / "params.yaml")
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(("sets", "said"), REFUSED, ids=[" ".join(sets) for sets, _ in REFUSED])
def test_a_setting_that_nothing_would_read_or_that_cannot_work_is_refused_in_one_line(params: dict[str, Any], sets: list[str], said: str) -> None:
    with pytest.raises(RatchetError) as caught:
        render_params(params, {}, sets)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("credit", ESTIMATORS)
def test_every_estimator_can_be_chosen_and_starts_from_the_papers_values(params: dict[str, Any], credit: str) -> None:
    own = render_params(params, {}, [f"evolve_online.credit={credit}"])["evolve_online"]
    assert own["credit"] == credit
    assert {name: own[name] for name in PUBLISHED} == {name: one.model_dump() for name, one in PUBLISHED.items()}


def test_all_that_is_not_grpo_is_off_by_default() -> None:
    own = load(CHECKOUT / "params.yaml").evolve_online
    assert (own.credit, own.echo.weight, own.success_sft.weight, own.balance, own.null_policy) == ("grpo", 0, 0, "none", "keep")
    assert own.forecast.weight == 0 and (own.forecast.horizon, own.forecast.gate) == (2, "wins")


def test_few_prefixes_fit_where_all_do_not(params: dict[str, Any]) -> None:
    sets = ["evolve_online.forecast.weight=0.01", "evolve_online.batch_tokens=1000"]
    assert render_params(params, {}, [*sets, "evolve_online.forecast.prefixes=2"])["evolve_online"]["forecast"]["prefixes"] == 2
    assert render_params(params, {}, [*sets, "evolve_online.forecast.packing=separate"])
