"""Rewards as a recipe describes them: sums, weights, plug-ins, and scores that are kept."""

import json

import pytest

from reflectrl.core.plugins import names, resolve
from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards import Component, build
from reflectrl.wings.text.samples.sample import Sample

PLUGIN = """
from reflectrl.wings.text.rewards import Component

class Length(Component):
    calls = 0

    def __init__(self, scale: float = 1.0, broken: str = ""):
        self.scale, self.broken = scale, broken

    @property
    def fingerprint(self):
        return f"length {self.scale}"

    def score(self, samples):
        Length.calls += len(samples)
        if self.broken:
            return [float(self.broken)] * len(samples) if self.broken != "few" else []
        return [self.scale * len(s.completion) for s in samples]

class Stranger:
    pass
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Name of a module with the components above; each test gets its own."""
    name = f"plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def samples(*completions):
    return [Sample(str(i), "g", "prompt", text, 9.0, {"old": 1.0}) for i, text in enumerate(completions)]


def test_every_built_in_component_can_be_loaded():
    found = names("rewards")
    assert set(found) >= {"fluency", "faithfulness", "engagement", "upvote", "safety", "diversity", "reward_model"}
    assert "comet_critic" in found
    assert all(issubclass(resolve("rewards", name), Component) for name in found)


def test_the_reward_is_the_weighted_sum_and_components_are_kept(plugin, classifier):
    reward = build(
        {
            "fluency": {"weight": 2, "model": classifier("roberta", 2), "device": "cpu"},
            "diversity": 1.0,
            "long": {"use": f"{plugin}:Length", "weight": -0.5, "scale": 2},
        }
    )
    reward.prepare(samples("the sea", "it rains"))
    for labelled in reward.label(samples("the sea", "rains")):
        parts = labelled.components
        assert set(parts) == {"old", "fluency", "diversity", "long"}
        assert parts["long"] == 2 * len(labelled.completion)
        assert labelled.reward == pytest.approx(2 * parts["fluency"] + parts["diversity"] - 0.5 * parts["long"])


def test_a_score_is_computed_once_and_found_again_on_the_disk(plugin, tmp_path):
    section = {f"{plugin}:Length": 1.0}
    kind = resolve("rewards", f"{plugin}:Length")
    first = build(section, tmp_path / "cache").label(samples("a", "bb", "a"))
    assert kind.calls == 2
    again = build(section, tmp_path / "cache").label(samples("bb", "a", "ccc"))
    assert kind.calls == 3
    assert [s.reward for s in first + again] == [1, 2, 1, 2, 1, 3]
    build({f"{plugin}:Length": {"scale": 3.0}}, tmp_path / "cache").label(samples("a"))
    assert kind.calls == 4  # another fingerprint


def test_a_half_written_score_is_computed_again(plugin, tmp_path):
    section = {f"{plugin}:Length": 1.0}
    build(section, tmp_path / "cache").label(samples("a", "bb"))
    (path,) = (tmp_path / "cache").iterdir()
    path.write_text(path.read_text()[:-5])
    assert [s.reward for s in build(section, tmp_path / "cache").label(samples("a", "bb"))] == [1, 2]
    assert len(list(map(json.loads, path.read_text().splitlines()))) == 2
    path.write_text("no score\n")
    with pytest.raises(UserError, match="not a score"):
        build(section, tmp_path / "cache").label(samples("a"))


def test_a_vectoriser_that_was_fitted_anew_has_no_old_scores():
    reward = build({"diversity": 1.0})
    found = []
    for training in (("rain", "rain sea"), ("sea", "rain sea")):
        reward.prepare(samples(*training))
        found.append(reward.label(samples("rain sea sky"))[0].reward)
        found.append(reward.label(samples("rain sky"))[0].reward)
    assert found[1] == found[3] == pytest.approx(0.1)
    reward.prepare(samples("moon"))
    assert reward.label(samples("rain sky"))[0].reward == 0.0


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "names no component"),
        ({"fluancy": 1.0}, "unknown reward 'fluancy' (did you mean 'fluency'?)"),
        ({"fluency": "high"}, "rewards.fluency: the weight must be a number, not 'high'"),
        ({"fluency": True}, "the weight must be a number"),
        ({"fluency": {"weight": float("nan")}}, "the weight must be a number"),
        ({"diversity": {"modle": "x"}}, "reward 'diversity' takes no 'modle'"),
        ({"x": {"use": 3}}, "rewards.x.use must be the name of a component"),
        ({"safety": {"model": 3}}, "reward 'safety': 'model' must be text"),
        ({"safety": {"model": "x", "batch_size": 0}}, "batch_size is 0"),
        ({"PLUGIN:Stranger": 1}, "must be a class derived from Component; it is the class Stranger"),
        ({"PLUGIN:Length": {"scale": "big"}}, "must be a number"),
    ],
)
def test_a_wrong_section_is_answered_in_one_line(plugin, section, message):
    with pytest.raises(UserError) as caught:
        build({name.replace("PLUGIN", plugin): value for name, value in section.items()})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "message"),
    [("nan", "gave nan for sample '0'"), ("inf", "gave inf"), ("few", "gave 0 scores for 2 samples")],
)
def test_scores_of_a_broken_plugin_are_refused(plugin, broken, message):
    with pytest.raises(UserError, match=message):
        build({"long": {"use": f"{plugin}:Length", "broken": broken}}).label(samples("a", "bb"))
