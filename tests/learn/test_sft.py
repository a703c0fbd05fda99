"""SFT: what the loss is on, that batching changes nothing, early stopping, and going on after a kill."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from reflectrl.core.config import SFTConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import ChoiceRow, ReflectionRow
from reflectrl.core.prompts import Prompt, reflection_completion, reflector_prompt
from reflectrl.core.types import Observation, UserError
from reflectrl.learn.examples import (
    Example,
    Examples,
    choice_examples,
    evaluate_accuracy,
    evaluate_loss,
    reflection_examples,
)
from reflectrl.learn.sft import train_sft
from reflectrl.learn.trainer import cosine
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import pack

Tiny = Callable[..., LanguageModel]

QUICK = SFTConfig(steps=6, batch_size=4, lr=1e-2, eval_every=2, eval_rows=4, patience=10)


def observations(make_rooms: Callable[[], TextEnv]) -> list[Observation]:
    env, found = make_rooms(), []
    for split in ("train", "validation", "test"):
        for task in env.tasks(split):
            env.reset(seed=0, options={"task": task})
            found.append(env.observe())
    return found


@pytest.fixture
def rows(make_rooms: Callable[[], TextEnv]) -> list[ReflectionRow]:
    """A reflection per colour, of different lengths."""
    return [
        ReflectionRow(reflector_prompt(seen), reflection_completion("go left " * (i % 3 + 1)))
        for i, seen in enumerate(observations(make_rooms))
    ]


def train(lm: LanguageModel, rows: Any, config: SFTConfig = QUICK, **more: Any) -> list[dict[str, float]]:
    log: list[dict[str, float]] = []
    examples = reflection_examples(lm, rows)
    train_sft(lm, examples, examples, config, 0, more.pop("log", log.append), **more)
    return log


def same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    weights = other.weights()
    return all(torch.equal(tensor, weights[name]) for name, tensor in one.weights().items())


class TestExamples:
    def test_a_reflection_ends_with_end_of_text(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        lm = tiny()
        for example, row in zip(reflection_examples(lm, rows), rows, strict=True):
            completion = example.ids[example.start :]
            assert completion[-1] == lm.tokenizer.eos_token_id
            assert lm.tokenizer.decode(completion[:-1]) == row.completion
            assert lm.tokenizer.decode(example.ids[: example.start]) == row.prompt.history + row.prompt.rest

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_a_choice_is_the_label_of_the_target(self, tiny: Tiny, make_rooms: Any, shuffle: bool) -> None:
        policy = Policy(tiny(), shuffle_labels=shuffle)
        rows = [ChoiceRow(seen, None, 1) for seen in observations(make_rooms)]
        examples = choice_examples(policy, rows, seed=3)
        said = []
        for example in examples:
            text = policy.lm.tokenizer.decode(example.ids[: example.start])
            label = policy.lm.tokenizer.decode(example.ids[example.start :]).strip()
            assert f"{label}: left" in text
            said.append(label)
        second = {policy.labels(len(row.observation.actions)).texts[1] for row in rows}
        assert len(set(said)) > 1 if shuffle else set(said) == second
        assert list(choice_examples(policy, rows, seed=3)) == list(examples)


class TestLoss:
    def test_it_is_on_the_completion_only(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        """Loss and gradient are those of the plain model whose labels are masked in the prompt."""
        lm, examples = tiny(), list(reflection_examples(tiny(), rows))
        tokens = sum(len(row.ids) - row.start for row in examples)
        expected = torch.zeros(())
        for row in examples:
            labels = torch.tensor([-100] * row.start + list(row.ids[row.start :]))[1:]
            logits = lm.model(torch.tensor([row.ids])).logits[0, :-1]
            expected = expected + torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens
        assert evaluate_loss(lm, examples, batch_size=3) == pytest.approx(float(expected.detach()), abs=1e-5)

        expected.backward()
        plain = {name: p.grad.clone() for name, p in lm.model.named_parameters()}
        before = lm.weights()
        step = replace(QUICK, steps=1, batch_size=len(rows), warmup=0.0, lr=1e-3, weight_decay=0.0)
        train_sft(lm, examples, examples, step, 0, lambda _: None)
        for name, parameter in lm.model.named_parameters():  # AdamW's first step is lr in the gradient's direction
            moved, clear = before[name] - parameter.detach(), plain[name].abs() > 1e-4
            assert torch.equal(moved[clear].sign(), plain[name][clear].sign())

    def test_other_targets_in_the_prompt_change_nothing(self, tiny: Tiny) -> None:
        lm = tiny()
        shapes, compute = [], lm.backend.logits
        lm.backend.logits = lambda *given: shapes.append(tuple((made := compute(*given)).shape)) or made  # type: ignore
        evaluate_loss(lm, [Example((5, 6, 7, 8, 9), 3), Example((5, 6), 1)], batch_size=2)
        assert shapes == [(3, len(lm.tokenizer))]  # 2 + 1 completion tokens, no more

    @pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2"])
    def test_rows_are_packed_each_for_itself_and_nothing_is_padding(
        self, tiny: Tiny, rows: list[ReflectionRow], family: str
    ) -> None:
        lm = tiny(family)
        examples = list(reflection_examples(lm, rows))
        assert len({len(row.ids) for row in examples}) > 1
        nll, tokens = 0.0, 0
        for row in examples:
            with torch.no_grad():
                logp_TV = lm.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
            nll -= float(sum(logp_TV[t - 1, row.ids[t]] for t in range(row.start, len(row.ids))))
            tokens += len(row.ids) - row.start
        before = lm.counters.copy()
        assert evaluate_loss(lm, examples, len(examples)) == pytest.approx(nll / tokens, abs=1e-5)
        counted = lm.counters.since(before)
        assert (counted.passes, counted.encoded) == (1, sum(len(row.ids) - 1 for row in examples))
        assert counted.logits == tokens * lm.core.get_output_embeddings().weight.shape[0]  # type: ignore[operator]

    def test_batching_changes_nothing(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        config = replace(QUICK, batch_size=7, steps=4, lr=1e-3)
        lms = [tiny("llama") for _ in range(3)]
        logs = [train(lm, rows, replace(config, accumulate=a)) for lm, a in zip(lms, (1, 2, 7), strict=True)]
        for log in logs[1:]:
            for one, other in zip(logs[0], log, strict=True):
                assert one == pytest.approx(other, rel=1e-6)
        for lm in lms[1:]:
            for name, tensor in lms[0].weights().items():
                torch.testing.assert_close(lm.weights()[name], tensor, atol=1e-5, rtol=0, msg=name)

    @pytest.mark.parametrize("by_episode", [False, True])
    @pytest.mark.parametrize("text_coef", [0.0, 0.5])
    def test_a_batch_that_needs_too_much_memory_goes_in_several_passes(
        self, tiny: Tiny, rows: list[ReflectionRow], monkeypatch: pytest.MonkeyPatch, by_episode: bool, text_coef: float
    ) -> None:
        config = replace(QUICK, batch_size=7, steps=2, lr=1e-3, by_episode=by_episode, text_coef=text_coef)
        whole, parted, counted = tiny("llama"), tiny("llama"), tiny("llama")
        logs = [train(whole, rows, config)]
        monkeypatch.setattr("reflectrl.models.machine.ACTIVATIONS", 1)
        logs.append(train(parted, rows, config))
        train(counted, rows, replace(config, accumulate=7))
        assert whole.counters.passes < parted.counters.passes == counted.counters.passes
        if not text_coef:  # the mean over the prompts' texts is one over what is packed together
            assert logs[0] == [pytest.approx(log, rel=1e-6) for log in logs[1]]

    def test_evaluation_does_not_depend_on_the_batch_size(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        lm = tiny()
        examples = reflection_examples(lm, rows)
        assert evaluate_loss(lm, examples, 1) == pytest.approx(evaluate_loss(lm, examples, 8), abs=1e-6)


class TestTraining:
    def test_a_tiny_set_is_learned_by_heart(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        lm = tiny()
        log = train(lm, rows[:1], replace(QUICK, steps=60, batch_size=1, eval_every=20, lr=3e-2))
        assert log[0]["loss"] > 1 and log[-1]["eval_loss"] < 0.05

    def test_the_loss_that_is_logged_is_the_mean_since_the_last_evaluation(
        self, tiny: Tiny, rows: list[ReflectionRow]
    ) -> None:
        config = replace(QUICK, steps=5, batch_size=len(rows), warmup=0.0)
        each = [line["loss"] for line in train(tiny(), rows, replace(config, eval_every=1))]
        assert [line["loss"] for line in train(tiny(), rows, replace(config, eval_every=2))] == pytest.approx(
            [sum(each[:2]) / 2, sum(each[2:4]) / 2, each[4]]
        )

    def test_it_stops_early_and_ends_with_the_best_weights(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        lm = tiny()
        train_rows, other = reflection_examples(lm, rows[:1]), reflection_examples(lm, rows[3:])
        log: list[dict[str, float]] = []
        config = replace(QUICK, steps=400, batch_size=1, lr=3e-2, eval_every=5, patience=2)
        train_sft(lm, train_rows, other, config, 0, log.append)
        losses = [line["eval_loss"] for line in log]
        best = losses.index(min(losses))
        assert len(losses) == best + 3 and log[-1]["step"] < 400
        assert evaluate_loss(lm, [other[i] for i in range(4)], 4) == pytest.approx(losses[best], abs=1e-6)

    def test_by_accuracy_it_ends_with_the_weights_that_write_most_tokens_right(
        self, tiny: Tiny, rows: list[ReflectionRow]
    ) -> None:
        lm = tiny()
        train_rows, other = reflection_examples(lm, rows[:1]), reflection_examples(lm, rows[3:])
        log: list[dict[str, float]] = []
        config = replace(QUICK, steps=60, batch_size=1, lr=3e-2, eval_every=5, patience=12, keep="accuracy")
        train_sft(lm, train_rows, other, config, 0, log.append)
        best = max(log, key=lambda line: (line["eval_accuracy"], -line["eval_loss"]))
        assert best["eval_loss"] > min(line["eval_loss"] for line in log)  # another one than by loss
        assert evaluate_accuracy(lm, [other[i] for i in range(4)], 4) == best["eval_accuracy"]
        assert evaluate_loss(lm, [other[i] for i in range(4)], 4) == pytest.approx(best["eval_loss"], abs=1e-6)

    @pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (10, 0.0), (10, 0.3), (7, 0.5), (3, 1.0), (2, 0.2)])
    def test_the_schedule_is_the_usual_cosine_to_a_tenth(self, steps: int, warmup: float) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        usual = get_cosine_with_min_lr_schedule_with_warmup(optimizer, round(warmup * steps), steps, min_lr_rate=0.1)
        rising = round(warmup * steps)
        for step in range(steps):
            expected = (step + 1) / rising if step < rising else usual.get_last_lr()[0]  # the usual warm-up begins at 0
            assert cosine(step, steps, warmup) == pytest.approx(expected), step
            optimizer.step()
            usual.step()

    @pytest.mark.parametrize(("schedule", "depends"), [("constant", False), ("linear", True), ("cosine", True)])
    def test_a_constant_rate_alone_does_not_depend_on_the_number_of_steps(
        self, tiny: Tiny, rows: list[ReflectionRow], schedule: Any, depends: bool
    ) -> None:
        losses = []
        for steps in (2, 6):
            lm, log = tiny(), list[dict[str, float]]()
            data = reflection_examples(lm, rows)
            config = replace(QUICK, steps=steps, eval_every=2, schedule=schedule, lr=1e-2, warmup=0.5)
            train_sft(lm, data, data, config, 0, log.append)
            losses.append(log[0]["eval_loss"])
        assert (losses[0] != losses[1]) == depends

    @pytest.mark.parametrize("missing", ["train", "validation"])
    def test_nothing_to_learn_from_is_said(self, tiny: Tiny, rows: list[ReflectionRow], missing: str) -> None:
        lm = tiny()
        given = {name: reflection_examples(lm, [] if name == missing else rows) for name in ("train", "validation")}
        with pytest.raises(UserError, match="no training or no validation rows"):
            train_sft(lm, given["train"], given["validation"], QUICK, 0, lambda _: None)


class Killed(Exception):
    """Stands for a kill."""


class TestResuming:
    @pytest.mark.parametrize("settings", [{}, {"lora_rank": 2, "lora_dropout": 0.3}], ids=["weights", "adapter"])
    @pytest.mark.parametrize("kill", [0, 1, 2])
    def test_after_a_kill_it_ends_as_if_uninterrupted(
        self, tiny: Tiny, rows: list[ReflectionRow], tmp_path: Path, settings: dict[str, Any], kill: int
    ) -> None:
        whole = tiny(**settings)
        expected = train(whole, rows)

        seen: list[dict[str, float]] = []

        def until_killed(line: dict[str, float]) -> None:
            if len(seen) == kill:
                raise Killed
            seen.append(line)

        with pytest.raises(Killed):
            train(tiny(**settings), rows, log=until_killed, state_folder=tmp_path / "learner")
        resumed = tiny(**settings)
        rest = train(resumed, rows, state_folder=tmp_path / "learner")
        assert seen + rest == expected
        assert same_weights(resumed, whole)

    def test_the_seed_decides(self, tiny: Tiny, rows: list[ReflectionRow]) -> None:
        lms = [tiny() for _ in range(3)]
        for lm, seed in zip(lms, (0, 0, 1), strict=True):
            examples = reflection_examples(lm, rows)
            train_sft(lm, examples, examples, QUICK, seed, lambda _: None)
        assert same_weights(lms[0], lms[1]) and not same_weights(lms[0], lms[2])


class TestByEpisode:
    """Rows of one episode learn together, with their common history encoded once."""

    @pytest.fixture
    def episodes(self) -> list[ReflectionRow]:
        rows = []
        for episode in range(5):
            history = f"Task {episode}: find the mug.\n"
            for step in range(4):
                rows.append(ReflectionRow(Prompt(history, "Reflection:"), f" step {step} of {episode}"))
                history += f"> go to desk {step + episode}\nOn the desk, you see nothing but dust and a pen.\n"
        return rows

    def test_loss_and_gradient_are_those_of_rows_apart(self, tiny: Tiny, episodes: list[ReflectionRow]) -> None:
        lm, examples = tiny(), reflection_examples(tiny(), episodes)
        assert evaluate_loss(lm, examples, 20, pack) == pytest.approx(evaluate_loss(lm, examples, 3), abs=1e-5)
        together, apart = tiny(), tiny()
        config = replace(QUICK, steps=3, batch_size=len(episodes), lr=1e-3)
        for lm, by_episode in ((together, True), (apart, False)):
            train_sft(lm, examples, examples, replace(config, by_episode=by_episode), 0, lambda _: None)
        weights = apart.weights()
        for name, tensor in together.weights().items():
            assert torch.allclose(tensor, weights[name], atol=2e-4), name

    def test_a_batch_holds_whole_episodes(
        self, tiny: Tiny, episodes: list[ReflectionRow], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lm, seen = tiny(), []
        examples = reflection_examples(lm, episodes)
        real = Examples.__getitem__
        monkeypatch.setattr(Examples, "__getitem__", lambda self, i: (seen.append(i), real(self, i))[1])
        train_sft(lm, examples, examples, replace(QUICK, steps=1, batch_size=8, by_episode=True), 0, lambda _: None)
        batch = [int(i) for i in seen[-8:]]
        assert sorted(batch[:4]) == [*range(min(batch[:4]), min(batch[:4]) + 4)] and min(batch[:4]) % 4 == 0
        assert sorted(batch[4:]) == [*range(min(batch[4:]), min(batch[4:]) + 4)] and min(batch[4:]) % 4 == 0


class TestTextLoss:
    def test_it_is_the_mean_over_the_tokens_of_the_prompts_themselves(self, tiny: Tiny) -> None:
        """One step of plain gradient descent, against the plain model's loss on everything."""
        lm, row = tiny(), Example((5, 6, 7, 8, 9, 10), 4)
        logits = lm.model(torch.tensor([row.ids])).logits[0, :-1]
        each = torch.nn.functional.cross_entropy(logits, torch.tensor(row.ids[1:]), reduction="none")
        (each[3:].mean() + 0.5 * each[:4].mean()).backward()  # the last token is the completion's alone
        plain = {name: p.grad.clone() for name, p in lm.model.named_parameters()}
        before = lm.weights()
        config = SFTConfig(steps=1, batch_size=1, warmup=0.0, lr=1e-3, weight_decay=0.0, text_coef=0.5, eval_every=1)
        train_sft(lm, [row], [row], config, 0, lambda _: None)
        for name, parameter in lm.model.named_parameters():
            moved, clear = before[name] - parameter.detach(), plain[name].abs() > 1e-4
            assert torch.equal(moved[clear].sign(), plain[name][clear].sign()), name
