"""What each component reads, and how its numbers come about."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.components import (
    CometCritic,
    Engagement,
    Faithfulness,
    Fluency,
    RewardModel,
    Safety,
    Upvote,
)
from reflectrl.wings.text.rewards.diversity import Diversity
from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.sample import Sample

TALK = dialogue.render([("Human", "how are you?"), ("Assistant", "fine"), ("Human", "it rains")])


def sample(completion=" the sea", prompt=TALK, **meta) -> Sample:
    return Sample("s", "g", prompt, completion, 0.0, meta=meta)


def library_logits(folder, *texts):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(**AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt")).logits[0]


@pytest.mark.parametrize(
    ("kind", "chosen", "texts"),
    [
        (Fluency, 1, ("the sea",)),
        (Safety, 0, ("the sea",)),
        (Faithfulness, 0, ("of ships", "the sea")),
        (CometCritic, 1, (TALK.strip(), "the sea")),
    ],
)
def test_a_classifier_gives_the_probability_of_its_class(classifier, kind, chosen, texts):
    folder = classifier("roberta", 2)
    expected = library_logits(folder, *texts).softmax(0)[chosen]
    assert kind(folder, device="cpu").score([sample(knowledge="of ships")]) == [
        pytest.approx(float(expected), abs=1e-6)
    ]


@pytest.mark.parametrize("kind", [Engagement, Upvote])
def test_a_ranker_reads_the_turns_with_end_of_text_between_them(classifier, kind):
    folder = classifier("gpt2", 1, pad=False)
    end = "<|endoftext|>"
    expected = library_logits(folder, f"how are you?{end}fine{end}it rains{end}the sea").sigmoid()
    assert kind(folder, device="cpu").score([sample()]) == [pytest.approx(float(expected), abs=1e-6)]
    plain = library_logits(folder, f"a comment{end}the sea").sigmoid()
    assert kind(folder, device="cpu").score([sample(prompt="a comment")]) == [pytest.approx(float(plain), abs=1e-6)]


def test_the_reward_model_reads_the_dialogue_in_its_own_marks(classifier):
    folder = classifier("gpt_neox_reward_model", 1)
    component = RewardModel(folder, device="cpu")
    end, human, assistant = "<|endoftext|>", "<|prompter|>", "<|assistant|>"
    whole = f"{human}how are you?{end}{assistant}fine{end}{human}it rains{end}{assistant}the sea{end}"
    assert component.style == "oasst"
    assert component.text(sample()) == whole
    assert component.score([sample()]) == [pytest.approx(float(library_logits(folder, whole).sigmoid()), abs=1e-6)]


def test_mean_pooling_does_not_see_the_padding(classifier):
    from reflectrl.wings.text.rewards.classifiers import OasstConfig, OasstRewardModel

    config = OasstConfig("mean", vocab_size=20, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    model = OasstRewardModel(config).eval()
    ids = torch.tensor([[3, 4, 5, 0, 0]])
    padded = model(ids, attention_mask=torch.tensor([[1, 1, 1, 0, 0]])).logits
    torch.testing.assert_close(padded, model(ids[:, :3]).logits)


def test_a_chat_template_is_used_where_there_is_one(classifier, tmp_path):
    folder = classifier("gpt2", 1)
    component = RewardModel(folder, device="cpu")
    assert component.style == "plain"
    assert component.text(sample()) == TALK + " the sea"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path)
    chat = RewardModel(str(tmp_path), device="cpu")
    assert chat.text(sample()) == "[user]how are you?[assistant]fine[user]it rains[assistant]the sea"
    assert chat.fingerprint != RewardModel(str(tmp_path), "plain", device="cpu").fingerprint


def test_faithfulness_without_knowledge_names_the_sample(classifier):
    with pytest.raises(UserError, match="sample 's' has no 'knowledge'"):
        Faithfulness(classifier("roberta", 2), device="cpu").score([sample()])


def test_a_critic_without_a_default_needs_a_model():
    with pytest.raises(UserError, match="CometCritic needs a model"):
        CometCritic()


def test_a_ranker_with_two_labels_is_refused(classifier):
    with pytest.raises(UserError, match=r"reward Upvote: the model .* has 2 labels; it must have 1"):
        Upvote(classifier("roberta", 2))


def test_diversity_is_the_mean_of_the_non_zero_tf_idf_values():
    component = Diversity()
    component.prepare([sample("rain sea"), sample("rain rain"), sample("rain sky")])
    idf = {word: math.log((1 + 3) / (1 + n)) + 1 for word, n in {"rain": 3, "sea": 1}.items()}
    norm = math.hypot(*idf.values())
    expected = sum(value / norm for value in idf.values()) / 2
    assert component.score([sample("sea rain"), sample("rain"), sample("moon")]) == pytest.approx([expected, 1.0, 0.0])


def test_diversity_says_what_it_lacks():
    with pytest.raises(UserError, match="needs training responses"):
        Diversity().score([sample()])
    with pytest.raises(UserError, match="hold no words"):
        Diversity().prepare([sample("!")])


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5))
def test_diversity_stays_in_its_range(texts):
    component = Diversity()
    component.prepare([sample("the sea and the rain")])
    assert all(0 <= score <= 1 for score in component.score([sample(text) for text in texts]))
