"""What each component reads, and how its numbers come about."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer, RobertaModel

from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.components import (
    CometCritic,
    Engagement,
    Faithfulness,
    Fluency,
    RewardModel,
    Safety,
    Upvote,
    names_for,
)
from reflectrl.wings.text.rewards.diversity import Diversity
from reflectrl.wings.text.rewards.published import ThreadClassifier
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
        (Safety, 0, ("how are you?\nfine\nit rains", "the sea")),
        (Faithfulness, 0, ("of ships", "the sea")),
    ],
)
def test_a_classifier_gives_the_probability_of_its_class(classifier, kind, chosen, texts):
    folder = classifier("roberta", 2)
    expected = library_logits(folder, *texts).softmax(0)[chosen]
    assert kind(folder, device="cpu").score([sample(knowledge="of ships")]) == [
        pytest.approx(float(expected), abs=1e-6)
    ]


def test_the_critic_of_inferences_reads_the_sentences_that_it_was_trained_on(classifier):
    two, one = classifier("roberta", 2), classifier("roberta", 1)
    wish = sample(" to thank PersonY", "", head="PersonX meets PersonY", relation="xWant")
    first, second = names_for("PersonX meets PersonY")
    texts = (f"{first} meets {second}", f"as a result, {first} wants to thank {second}")
    component = CometCritic(two, device="cpu")
    assert component.text(wish) == texts
    assert first != second
    assert component.score([wish]) == [pytest.approx(float(library_logits(two, *texts).softmax(0)[1]), abs=1e-6)]
    expected = float(library_logits(one, *texts).sigmoid())
    assert CometCritic(one, device="cpu").score([wish]) == [pytest.approx(expected, abs=1e-6)]
    with pytest.raises(UserError, match="sample 's' needs a 'head' and a 'relation'"):
        component.score([sample(head="PersonX eats", relation="oWant")])


def test_safety_reads_a_thread_of_turns_with_a_decoder(classifier):
    folder, end = classifier("gpt2", 2), "<|endoftext|>"
    thread = f"how are you?{end}fine{end}it rains{end}the sea{end}"
    component = Safety(folder, device="cpu")
    assert component.score([sample()]) == [pytest.approx(float(library_logits(folder, thread).softmax(0)[0]), abs=1e-6)]
    alone = Safety(folder, parent=False, device="cpu")
    assert alone.text(sample()) == f"the sea{end}"
    assert alone.fingerprint != component.fingerprint


def test_the_published_classifier_of_threads_is_loaded_as_it_is(classifier, tmp_path):
    source = AutoModelForSequenceClassification.from_pretrained(classifier("gpt2", 2))
    model = ThreadClassifier(source.config)
    model.transformer.load_state_dict(source.transformer.state_dict())
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(classifier("gpt2", 2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["GPT2ForOC_S_offensive"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    end = "<|endoftext|>"
    ids = AutoTokenizer.from_pretrained(tmp_path)(f"a comment{end}the sea{end}", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        states = source.eval().transformer(ids).last_hidden_state[:, -1]
        expected = float(model.off_classifier(states).softmax(1)[0, 0])
    # A longer text in the same batch pads this one.
    found = Safety(str(tmp_path), device="cpu").score([sample(prompt="a comment"), sample("the sea and the rain")])
    assert found[0] == pytest.approx(expected, abs=1e-6)


def test_the_published_critic_of_inferences_is_loaded_with_its_own_head(classifier, tmp_path):
    model = RobertaModel.from_pretrained(classifier("roberta", 2))
    model.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(classifier("roberta", 2))
    tokenizer.save_pretrained(tmp_path)
    dense, out = torch.nn.Linear(16, 8), torch.nn.Linear(8, 1)
    parts = {"dense": dense, "out_proj": out}
    head = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    torch.save(head, tmp_path / "custom_roberta_classification_head.pt")
    component = CometCritic(str(tmp_path), device="cpu")
    wish = sample(" to sleep", head="PersonX works", relation="xWant")
    with torch.inference_mode():
        pooled = RobertaModel.from_pretrained(tmp_path).eval()(**tokenizer(*component.text(wish), return_tensors="pt"))
        expected = float(out(torch.nn.functional.gelu(dense(pooled.pooler_output))).sigmoid())
    assert component.score([wish]) == [pytest.approx(expected, abs=1e-6)]


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
    scores = component.score([sample("sea rain"), sample("rain"), sample("moon")])
    assert scores == pytest.approx([expected * 2 / 10, 0.1, 0.0])  # few known words: a tenth for each


def test_diversity_scales_responses_of_fewer_than_five_known_words():
    component = Diversity()
    component.prepare([sample("a1 b1 c1 d1 e1 f1")])
    scores = component.score([sample("yes a1"), sample("a1 b1 c1 d1"), sample("a1 b1 c1 d1 e1")])
    assert scores == pytest.approx([0.1, 0.4 * 4**-0.5, 5**-0.5])


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
