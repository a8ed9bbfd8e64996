"""The clipped surrogate at all ratio levels and means."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.learners.batches import REPLY
from ratchet.losses.clipped_surrogate import ClippedSurrogate, clipped_surrogate, level_log_ratio, step_tokens
from ratchet.losses.kl import ESTIMATORS, Estimator, k3, seen_kl
from tests.learners.test_actor import make, near, same, step
from tests.models import tiny

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "clipped_surrogate.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_equals_the_vectors(case: dict) -> None:
    log_ratio, advantage = (torch.tensor([case[name]], dtype=torch.float64) for name in ("log_ratio", "advantage"))
    loss = clipped_surrogate(log_ratio, advantage, case["eps_low"], case["eps_high"], case["dual_clip"])
    np.testing.assert_allclose(loss.item(), case["loss"], rtol=1e-6, atol=1e-12)


def test_levels_sum_or_average_inside_one_step_only() -> None:
    log_ratio, step = torch.tensor([0.1, 0.3, -0.2]), torch.tensor([0, 0, 1])
    assert level_log_ratio(log_ratio, step, "token").tolist() == log_ratio.tolist()
    torch.testing.assert_close(level_log_ratio(log_ratio, step, "step_sum"), torch.tensor([0.4, 0.4, -0.2]))
    torch.testing.assert_close(level_log_ratio(log_ratio, step, "step_mean"), torch.tensor([0.2, 0.2, -0.2]))


def test_k3_is_zero_at_equality_and_never_negative() -> None:
    logp = torch.randn(100)
    assert k3(logp, logp).abs().max() == 0
    assert (k3(logp, torch.randn(100)) >= 0).all()


def test_the_divergence_of_what_was_written_is_a_lower_bound_whoever_wrote_it() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.log_softmax(4 * torch.randn(64, 9, generator=generator, dtype=torch.float64), -1) for _ in range(2))
    whole = (p.exp() * (p - q)).sum(-1)
    for token in range(9):  # also the one that p thinks least likely, where k3 is far above
        seen = seen_kl(p[:, token], q[:, token])
        assert (seen >= 0).all() and (seen <= whole + 1e-12).all()
    assert k3(p, q).max() > 10 * whole.max()
    two = torch.log(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
    assert float(seen_kl(two[0, :1], two[1, :1])) == pytest.approx(0.9 * np.log(0.9 / 0.2) + 0.1 * np.log(0.1 / 0.8))
    assert seen_kl(torch.zeros(1), torch.tensor([-20.0])).isfinite().all() and float(seen_kl(p, p).abs().max()) == 0


def test_names_are_those_of_params_yaml() -> None:
    term = ClippedSurrogate(low=0.2, high=0.28)
    assert (term.mean, term.level, term.dual) == ("token", "token", None)


def test_before_the_first_step_all_levels_have_the_same_gradient() -> None:
    """A whole action's loss counts once, not once for each of its tokens."""
    batch = tiny.sequences(6)
    found = make([ClippedSurrogate(low=0.2, high=0.28)]).logprobs(batch)
    for one in batch:
        one.old_logprobs = found[one.episode_id]
    token, _ = step([ClippedSurrogate(low=0.2, high=0.28, mean="episode")], batch)
    for level in ("step_sum", "step_mean"):
        same(token, step([ClippedSurrogate(low=0.2, high=0.28, mean="episode", level=level)], batch)[0], atol=1e-5)
    assert step_tokens(torch.tensor([0, 2, 2, 2])).tolist() == [1, 3, 3, 3]


def test_a_token_mean_weighs_tokens_and_an_episode_mean_episodes() -> None:
    batch = near(tiny.sequences(6))
    losses, logp = [], make([ClippedSurrogate(low=0.2, high=0.28)]).logprobs(batch)
    for one in batch:
        mine = one.role == REPLY
        ratio, advantage = (torch.from_numpy(values[mine]) for values in (logp[one.episode_id] - one.old_logprobs, one.advantages[one.step]))
        losses.append(clipped_surrogate(ratio, advantage, 0.2, 0.28, 3.0).numpy())
    for mean, expected in (("token", np.concatenate(losses).mean()), ("episode", np.mean([one.mean() for one in losses]))):
        _, metrics = step([ClippedSurrogate(low=0.2, high=0.28, dual=3.0, mean=mean)], batch)
        np.testing.assert_allclose(metrics["policy"], expected, rtol=1e-4)


def test_a_token_that_the_policy_has_turned_from_has_no_pull_without_a_bound() -> None:
    """Seen in a real run: a failure of the round before held a token at log-prob −14.6 that the reference gives −.6."""
    reference = torch.tensor([-0.6, -0.6, -1e-7, -20.0])

    def pull(estimator: Estimator, of: torch.Tensor) -> np.ndarray:
        """On the token's logit, as softmax hands it on."""
        logp = of.clone().requires_grad_()
        ESTIMATORS[estimator](logp, reference).sum().backward()
        assert logp.grad is not None
        return (logp.grad * (1 - of.exp())).abs().numpy()

    turned = torch.tensor([-14.6, -0.9, -0.5, 0.0])
    assert pull("k3", turned)[0] > 1e6 and (pull("seen", turned) < 10).all() and pull("seen", turned)[1] > 0.01
    assert pull("seen", reference).max() < 1e-6, "no pull where there is no divergence"
