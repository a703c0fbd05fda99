"""What a model reads, to the letter: every checkpoint depends on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.prompts import policy_prompt, reflection_completion, reflector_prompt
from reflectrl.core.types import Observation

SEEN = Observation("was here\n", "|T|\n", ("south", "north", "pick up"))
LABELS = ("1", "2", "3", "4")


def test_the_reflector_reads_history_state_and_its_cue() -> None:
    assert reflector_prompt(SEEN) == ("was here\n", "|T|\nReflection:")
    assert reflection_completion("Go on.") == " Go on."


def test_the_policy_reads_state_reflection_and_numbered_actions() -> None:
    listed = "Actions: 1: south; 2: north; 3: pick up\nChoice:"
    assert policy_prompt(SEEN, "Go on.", LABELS) == ("was here\n", f"|T|\nReflection: Go on.\n{listed}")
    assert policy_prompt(SEEN, None, LABELS) == ("was here\n", f"|T|\n{listed}")


def test_the_policy_continues_what_the_reflector_has_read_and_written() -> None:
    read = "".join(reflector_prompt(SEEN)) + reflection_completion("Go on.")
    assert "".join(policy_prompt(SEEN, "Go on.", LABELS)).startswith(read)


@pytest.mark.parametrize("order", [(2, 0, 1), [1, 2, 0]])
def test_an_order_names_which_action_each_label_stands_for(order: tuple[int, ...]) -> None:
    listed = "; ".join(f"{i + 1}: {SEEN.actions[k]}" for i, k in enumerate(order))
    assert f"Actions: {listed}\nChoice:" in policy_prompt(SEEN, None, LABELS, order).rest


@given(st.text(), st.text(), st.text(), st.lists(st.text(), min_size=1, max_size=4))
def test_text_is_shown_as_it_is_whatever_it_looks_like(history: str, state: str, said: str, actions: list[str]) -> None:
    seen = Observation(history, state, tuple(actions))
    listed = "; ".join(f"{i}: {action}" for i, action in enumerate(actions, start=1))
    expected = f"{state}Reflection: {said}\nActions: {listed}\nChoice:"
    assert policy_prompt(seen, said, LABELS) == (history, expected)
    assert reflector_prompt(seen) == (history, f"{state}Reflection:")


def test_templates_are_not_rendered_twice() -> None:
    seen = Observation("", "{{ state }} {% if %} \0 <b>&amp;\n", ("{{ actions }}",))
    assert policy_prompt(seen, "{{ x }}", LABELS).rest == (
        "{{ state }} {% if %} \0 <b>&amp;\nReflection: {{ x }}\nActions: 1: {{ actions }}\nChoice:"
    )
