"""Loaded models learn: every family by SFT and RL, whole or as two adapters on one backbone."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from reflectrl.core.config import ModelConfig, RLConfig, SFTConfig
from reflectrl.core.envs import make
from reflectrl.core.episodes import sft_policy, sft_reflection
from reflectrl.core.players import AnalystPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.learn.examples import choice_examples, evaluate_loss, reflection_examples
from reflectrl.learn.minibatches import make_batch
from reflectrl.learn.online import update
from reflectrl.learn.sft import train_sft
from reflectrl.learn.steps import flatten
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from reflectrl.models.players import Policy, sampler
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import no_sharing

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
ENV = {"name": "corridor"}
SHAPE = {"layers": 1, "width": 32, "heads": 2, "vocab": 400, "context": 256}


@pytest.fixture(scope="module")
def base(taught: list[Episode], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of each family with random weights."""
    listed = "\nActions: 1: left; 2: right; 3: take; 4: open\nChoice: 1"
    texts = [step.observation.text + (step.reflection or "") + listed
             for episode in taught for step in episode.steps]  # fmt: skip
    folders: dict[str, Path] = {}

    def make_base(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            save_scratch(folders[family], ModelConfig(family=family, **SHAPE), texts, 4, seed=1)
        return folders[family]

    return make_base


def settings_of(family: str, rank: int) -> ModelConfig:
    return ModelConfig(family=family, lora_rank=rank, mixed_precision="off", **SHAPE)


def everything(lm: LanguageModel) -> dict[str, Tensor]:
    """A copy of every weight in the model, whoever's it is."""
    return {name: p.detach().clone() for name, p in lm.model.named_parameters()}


def changed(lm: LanguageModel, before: dict[str, Tensor]) -> set[str]:
    return {name for name, p in lm.model.named_parameters() if name in before and not torch.equal(p, before[name])}


def sft_steps(lm: LanguageModel, taught: list[Episode], kind: str, steps: int = 8) -> tuple[float, float]:
    """A few SFT steps; evaluation losses before and after."""
    if kind == "reflector":
        examples = reflection_examples(lm, sft_reflection(taught))
    else:
        examples = choice_examples(Policy(lm), sft_policy(taught), 0)
    before = evaluate_loss(lm, examples, 32)
    config = SFTConfig(steps=steps, batch_size=16, lr=1e-2, warmup=0.0, eval_every=steps)
    train_sft(lm, examples, examples, config, 0, lambda metrics: None)
    return before, evaluate_loss(lm, examples, 32)


def rl_step(lm: LanguageModel, kl_coef: float = 0.1) -> None:
    """One policy-gradient step on a few sampled episodes, with a reference and a critic."""
    policy = Policy(lm, Sampling(1.0))
    jobs = [Job(task, seed) for seed, task in enumerate(make(ENV).tasks("train")[:6])]
    steps = flatten(policy, list(rollout(jobs, lambda: make(ENV), policy, AnalystPlayer())), 1.0)
    critic = ValueHead(lm.hidden_size).to(lm.device)
    config = RLConfig(baseline="critic", kl_coef=kl_coef, max_grad_norm=1.0)
    reference = Policy(lm.frozen_copy(), policy.sampling) if kl_coef else None
    optimizer = torch.optim.AdamW([*lm.parameters(), *critic.parameters()], lr=1e-3, weight_decay=0.0)
    batch = make_batch(policy, reference, critic, steps, config, 0.0)
    metrics = update(Trainer(lm, [optimizer], 1.0), critic, batch, config, 1)
    assert np.isfinite(list(metrics.values())).all()


# ---- whole models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_by_sft_and_by_rl(
    family: str, base: Callable[[str], Path], taught: list[Episode], tmp_path: Path
) -> None:
    lm = load_model(base(family), settings_of(family, 0), "policy")
    for kind in ("reflector", "policy"):
        before, after = sft_steps(lm, taught, kind)
        assert after < 0.9 * before, kind
    weights = everything(lm)
    rl_step(lm)
    assert len(changed(lm, weights)) > len(weights) / 2
    lm.save(tmp_path)
    again = load_model(tmp_path, settings_of(family, 0))
    assert all(torch.equal(p, again.weights()[name]) for name, p in lm.weights().items())


def test_a_frozen_copy_of_a_whole_model_stays_as_it_is(base: Callable[[str], Path], taught: list[Episode]) -> None:
    lm = load_model(base("llama"), settings_of("llama", 0))
    reference = lm.frozen_copy()
    before = reference.weights()
    sft_steps(lm, taught, "policy", steps=2)
    assert all(torch.equal(p, before[name]) for name, p in reference.weights().items())
    assert changed(lm, everything(reference))
    assert not any(p.requires_grad for p in reference.parameters())
    assert all(p.requires_grad for p in lm.parameters())


def test_weights_are_a_copy_and_can_be_put_back(base: Callable[[str], Path], taught: list[Episode]) -> None:
    for rank in (0, 2):
        lm = load_model(base("gpt2"), settings_of("gpt2", rank), "policy")
        kept, before = lm.weights(), everything(lm)
        assert sum(t.numel() for t in kept.values()) == sum(p.numel() for p in lm.parameters())  # tied ones once
        sft_steps(lm, taught, "policy", steps=2)
        assert changed(lm, before)
        lm.load_weights(kept)
        assert not changed(lm, before)


def test_it_is_in_evaluation_mode_except_while_training(base: Callable[[str], Path]) -> None:
    lm = load_model(base("gpt2"), settings_of("gpt2", 2), "policy")
    assert not lm.model.training
    with pytest.raises(KeyError), lm.training():
        assert lm.model.training
        raise KeyError
    assert not lm.model.training


# ---- two players on one backbone -------------------------------------------------------------------------------------


def pair(base: Callable[[str], Path], family: str) -> tuple[LanguageModel, LanguageModel]:
    policy = load_model(base(family), settings_of(family, 2), "policy")
    return policy, second_player(policy, "reflector")


def say(lm: LanguageModel) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    prompt = tuple(lm.encode("The lake:\nReflection:"))
    return lm.backend.write([prompt], 5, sampler(Sampling(0.0)), [np.random.default_rng(0)])


@pytest.mark.parametrize("family", FAMILIES)
def test_two_players_share_a_backbone_and_nothing_else(
    family: str, base: Callable[[str], Path], taught: list[Episode]
) -> None:
    policy, reflector = pair(base, family)
    assert policy.model is reflector.model
    untouched = {id(p) for p in policy.model.parameters()} - {
        id(p) for p in policy.parameters() + reflector.parameters()
    }
    assert len(untouched) >= len(list(load_model(base(family), settings_of(family, 0)).model.parameters()))
    assert not {id(p) for p in policy.parameters()} & {id(p) for p in reflector.parameters()}

    for learner, kind in ((reflector, "reflector"), (policy, "policy")):
        before = everything(policy)
        first, last = sft_steps(learner, taught, kind)
        assert last < first
        moved = changed(policy, before)
        assert moved and all(f".{kind}." in name for name in moved)
    before = everything(policy)
    rl_step(policy)
    moved = changed(policy, before)
    assert len(moved) == len(policy.parameters()), "the reference's turn must not lose the policy's gradients"
    assert all(".policy." in name for name in moved)


def test_a_players_weights_are_its_adapter_and_can_be_trained_whoever_is_active(base: Callable[[str], Path]) -> None:
    policy, reflector = pair(base, "llama")
    for active in (policy, reflector):
        active.activate()
        for lm in (policy, reflector):
            mine = [name for name, p in lm.model.named_parameters() if any(p is own for own in lm.parameters())]
            assert mine and all(f".{lm.adapter}." in name and "lora" in name for name in mine)
            assert all(p.requires_grad for p in lm.parameters())
        frozen = [name for name, p in policy.model.named_parameters() if not p.requires_grad]
        assert frozen and not any("lora" in name for name in frozen)


def test_taking_turns_gives_each_player_its_own_output(base: Callable[[str], Path], taught: list[Episode]) -> None:
    policy, reflector = pair(base, "llama")
    sft_steps(reflector, taught, "reflector", steps=3)
    sft_steps(policy, taught, "policy", steps=3)
    alone = say(policy), say(reflector)
    assert alone[0] != alone[1]
    assert (say(reflector), say(policy), say(policy), say(reflector)) == (alone[1], alone[0], alone[0], alone[1])


def test_gradients_survive_another_players_turn(base: Callable[[str], Path]) -> None:
    policy, reflector = pair(base, "llama")
    prompts = no_sharing([tuple(policy.encode("The lake"))])
    loss = policy.backend.logits(policy.backend.read(prompts)).square().mean()
    with torch.no_grad():
        reflector.backend.read(prompts)
    loss.backward()
    assert sum(float(p.grad.abs().sum()) for p in policy.parameters() if p.grad is not None) > 0
    assert all(p.grad is None for p in reflector.parameters())


def test_a_frozen_copy_of_an_adapter_is_a_further_adapter(base: Callable[[str], Path], taught: list[Episode]) -> None:
    policy, reflector = pair(base, "gpt2")
    sft_steps(policy, taught, "policy", steps=2)
    before = everything(policy)
    reference = policy.frozen_copy()
    assert not changed(policy, before)
    assert reference.model is policy.model and reference.adapter == "reference"
    assert say(reference) == say(policy)
    kept = say(reference)
    sft_steps(policy, taught, "policy", steps=4)
    assert say(reference) == kept != say(policy)
    reference.activate()
    assert not any(p.requires_grad for p in reference.parameters())
    assert all(p.requires_grad for p in policy.parameters() + reflector.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_saved_apart_and_loaded_together(
    family: str, base: Callable[[str], Path], taught: list[Episode], tmp_path: Path
) -> None:
    policy, reflector = pair(base, family)
    sft_steps(policy, taught, "policy", steps=2)
    sft_steps(reflector, taught, "reflector", steps=2)
    policy.frozen_copy()
    for lm in (policy, reflector):
        lm.save(tmp_path / str(lm.adapter))
        names = {path.name for path in (tmp_path / str(lm.adapter)).iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "reflectrl.json", "tokenizer.json"} <= names
        assert not any((tmp_path / str(lm.adapter) / name).is_dir() for name in names)
    loaded = load_model(tmp_path / "policy", settings_of(family, 2), "policy")
    second = second_player(loaded, "reflector", tmp_path / "reflector")
    assert (say(loaded), say(second)) == (say(policy), say(reflector))
    assert all(p.requires_grad for p in loaded.parameters() + second.parameters())
    before = everything(loaded)
    sft_steps(loaded, taught, "policy", steps=2)
    assert all(".policy." in name for name in changed(loaded, before))


def test_a_fresh_adapter_is_the_same_in_every_process_and_changes_nothing_yet(base: Callable[[str], Path]) -> None:
    torch.manual_seed(1)
    first, _ = pair(base, "llama")
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second, _ = pair(base, "llama")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, second.weights()[name]) for name, p in first.weights().items())
    assert say(first) == say(load_model(base("llama"), settings_of("llama", 0)))


def test_only_adapters_share_a_backbone(base: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="only adapters"):
        second_player(load_model(base("gpt2"), settings_of("gpt2", 0)), "reflector")


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_adapter_that_does_not_fit_is_refused_in_one_line(base: Callable[[str], Path], tmp_path: Path) -> None:
    policy, _ = pair(base, "gpt2")
    policy.save(tmp_path / "policy")
    other, _ = pair(base, "llama")
    assert "does not fit" in refusal(lambda: second_player(other, "another", tmp_path / "policy"))
    assert "does not fit" in refusal(lambda: second_player(other, "another", tmp_path / "nowhere"))

    about = tmp_path / "policy" / "adapter_config.json"
    stored = json.loads(about.read_text())
    assert stored["base_model_name_or_path"] == str(base("gpt2"))
    about.write_text(json.dumps(stored | {"base_model_name_or_path": str(base("llama"))}))
    assert "does not fit" in refusal(lambda: load_model(tmp_path / "policy", settings_of("gpt2", 2), "policy"))
    about.write_text(json.dumps(stored | {"base_model_name_or_path": str(tmp_path / "gone")}))
    assert "gone" in refusal(lambda: load_model(tmp_path / "policy", settings_of("gpt2", 2), "policy"))
    about.write_text("[")
    assert "cannot be read" in refusal(lambda: load_model(tmp_path / "policy", settings_of("gpt2", 2), "policy"))


def test_adapters_are_imported_where_there_are_some() -> None:
    """Importing peft takes a fifth of a second, of which a model without adapters has nothing."""
    code = "import sys, reflectrl.models.load; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
