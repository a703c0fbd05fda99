"""Dialogues as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.dialogue import ASSISTANT, HUMAN

said = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)
spoken = said.filter(lambda text: "\n\n" not in text and dialogue.END not in text)


@given(st.lists(spoken, min_size=1, max_size=4), st.sampled_from(dialogue.STYLES), st.just("") | spoken)
def test_what_is_rendered_is_split_again(texts: list[str], style: str, knowledge: str) -> None:
    if texts[0].startswith(dialogue.KNOWLEDGE):
        return
    speakers = [(ASSISTANT, HUMAN)[(len(texts) - i) % 2] for i in range(len(texts))]
    turns = list(zip(speakers, texts, strict=True))
    prompt = dialogue.render(turns, knowledge, style)
    assert dialogue.split(prompt) == [*turns, (ASSISTANT, "")]


def test_prompts_end_where_the_assistant_speaks() -> None:
    turns = [(HUMAN, "Hi."), (ASSISTANT, "Hello."), (HUMAN, "Bye.")]
    assert dialogue.render(turns) == "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Bye.\n\nAssistant:"
    assert dialogue.render(turns[:1], "Greetings are short.") == (
        "Knowledge: Greetings are short.\n\nHuman: Hi.\n\nAssistant:"
    )
    assert dialogue.render(turns, "K.", "dialogpt") == (
        "Knowledge: K.<|endoftext|>Hi.<|endoftext|>Hello.<|endoftext|>Bye.<|endoftext|>"
    )
    assert (dialogue.answer("Bye."), dialogue.answer("Bye.", "dialogpt")) == (" Bye.", "Bye.")


@pytest.mark.parametrize("text", ["", "Once upon a time", "Once\n\nHuman: upon", "He said Human: no"])
def test_other_texts_are_no_dialogue(text: str) -> None:
    assert dialogue.split(text) == []


def test_what_was_answered_is_a_turn_as_well() -> None:
    assert dialogue.split("\n\nHuman: Hi.\n\nAssistant: Hello.")[-1] == (ASSISTANT, "Hello.")
