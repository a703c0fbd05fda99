"""Classifiers are loaded from the disk by the code that loads hub models, and refused where they do not fit."""

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.classifiers import Classifier

SENTENCES = ["it rains", "how are you? fine, thank you", "the sea", "bad", "knowledge of ships and of the sea " * 3]


@pytest.mark.parametrize(
    ("family", "labels", "pad"),
    [
        ("roberta", 2, True),
        ("bert", 2, True),
        ("gpt2", 1, True),
        ("gpt2", 1, False),
        ("gpt_neox_reward_model", 1, True),
    ],
)
def test_logits_are_those_of_the_library_for_each_text_alone(classifier, family, labels, pad):
    folder = classifier(family, labels, pad=pad)
    found = Classifier(folder, labels, "reward", device="cpu").logits(SENTENCES, batch_size=3)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for sentence, logits in zip(SENTENCES, found, strict=True):
        with torch.inference_mode():
            alone = model(**tokenizer(sentence, return_tensors="pt")).logits[0]
        torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)


def test_texts_that_are_too_long_lose_the_end_that_is_said(classifier):
    folder = classifier("gpt2", 1)
    words = " ".join(["sea"] * 200)
    left = Classifier(folder, 1, "reward", device="cpu", cut="left")
    right = Classifier(folder, 1, "reward", device="cpu")
    assert torch.equal(left.logits([f"{words} bad"], 1), left.logits([f"{words} sea{words} bad"], 1))
    assert torch.equal(right.logits([f"bad {words}"], 1), right.logits([f"bad {words} rains"], 1))
    assert not torch.equal(left.logits([f"{words} bad"], 1), left.logits([f"{words} it"], 1))


def test_roberta_positions_are_not_outgrown(classifier):
    folder = classifier("roberta", 2)
    found = Classifier(folder, 2, "reward", device="cpu")
    assert found.limit < 64
    assert found.logits([("sea " * 100, "it rains")], 1).isfinite().all()


def test_a_missing_model_is_named_with_the_way_to_get_it():
    with pytest.raises(UserError, match=r"reward 'x': model 'nobody/nothing' is neither a folder .* hf download"):
        Classifier("nobody/nothing", 2, "reward 'x'")


def test_another_number_of_labels_is_refused(classifier):
    with pytest.raises(UserError, match=r"reward 'x': the model .* has 3 labels; it must have 2"):
        Classifier(classifier("bert", 3), 2, "reward 'x'")


def test_a_model_without_a_trained_head_is_refused(classifier, tmp_path):
    folder = classifier("bert", 2)
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="not a trained classifier: it lacks classifier"):
        Classifier(str(tmp_path), 2, "reward 'x'")


def test_a_folder_that_holds_something_else_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be loaded"):
        Classifier(str(tmp_path), 2, "reward 'x'")


def test_the_fingerprint_is_the_content(classifier, tmp_path):
    import shutil

    folder = classifier("roberta", 2)
    shutil.copytree(folder, tmp_path / "copy")
    other = classifier("roberta", 2, seed=1)
    prints = [Classifier(str(f), 2, "reward").fingerprint for f in (folder, tmp_path / "copy", other)]
    assert prints[0] == prints[1] != prints[2]
