"""Completions are written by the engine, kept line by line, and written on after a kill."""

import pytest

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import Sampling, UserError
from reflectrl.models.load import load_model
from reflectrl.wings.text.generation.generate import one_per_prompt, read_completions, write_completions
from reflectrl.wings.text.learn.text_dataset import prompt_ids
from reflectrl.wings.text.samples.sample import Sample

PROMPTS = [Sample(f"s{i}", f"g{i}", f"Day one: went to see {i}.", " x", 1.0, meta={"n": i}) for i in range(5)]


@pytest.fixture(scope="module")
def lm(tiny_folder):
    return load_model(tiny_folder("gpt2"), ModelConfig(context=128, mixed_precision="off", device="cpu"))


SAMPLED = Sampling(1.0)


def write(lm, path, sampling=SAMPLED, **settings):
    settings = {"most_tokens": 8, "prompt_tokens": 40, "batch_size": 2, **settings}
    return write_completions(lm, PROMPTS, path, sampling, **settings)


def test_completions_belong_to_their_prompts(lm, tmp_path):
    found = write(lm, tmp_path / "w" / "a.jsonl")
    assert [(s.id, s.group, s.prompt, s.meta) for s in found] == [(s.id, s.group, s.prompt, s.meta) for s in PROMPTS]
    assert all(s.reward != s.reward and s.logprob <= 0 and s.components["tokens"] <= 8 for s in found)


def test_greedy_completions_are_those_of_the_library(lm, tmp_path):
    import torch

    found = write(lm, tmp_path / "a.jsonl", Sampling(0.0))
    for sample in found:
        ids = torch.tensor([prompt_ids(lm, sample, 40, 8)])
        with torch.inference_mode():
            out = lm.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        text = lm.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        assert sample.completion == text


def test_a_completion_does_not_depend_on_its_batch(lm, tmp_path):
    pairs = write(lm, tmp_path / "a.jsonl")
    whole = write(lm, tmp_path / "b.jsonl", batch_size=5)
    assert [s.completion for s in pairs] == [s.completion for s in whole]
    other = write(lm, tmp_path / "c.jsonl", seed=1)
    assert [s.completion for s in other] != [s.completion for s in whole]


def test_a_killed_run_goes_on_and_gives_the_same_bytes(lm, tmp_path):
    path = tmp_path / "a.jsonl"
    found = write(lm, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert write(lm, path) == found
    assert path.read_bytes() == whole


def test_several_draws_have_names_of_their_own(lm, tmp_path):
    found = write(lm, tmp_path / "a.jsonl", draws=2)
    assert [s.id for s in found][:3] == ["s0#0", "s0#1", "s1#0"]
    assert len({s.completion for s in found}) > 5


def test_a_prompt_without_room_is_named(lm, tmp_path):
    with pytest.raises(UserError, match=r"sample 's0': 128 tokens leave no room for its prompt"):
        write(lm, tmp_path / "a.jsonl", most_tokens=128)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:1: not a completion"):
        read_completions(tmp_path / "a.jsonl")


def test_one_sample_per_prompt():
    twice = [*PROMPTS, Sample("other", "g1", "Day", " y", 0.0)]
    assert one_per_prompt(twice) == PROMPTS
