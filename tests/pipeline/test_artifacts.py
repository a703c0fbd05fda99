"""Artifacts made one by one: what a model made from scratch starts with."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from reflectrl.episodes import EpisodeLog
from reflectrl.pipeline.folder import Context, RunFolder
from reflectrl.pipeline.graph import EnvironmentPipeline
from reflectrl.pipeline.training import TOKENIZER_ROWS, base
from reflectrl.types import Episode, Observation, Step, Task, Turn
from tests.pipeline.conftest import LIKE


def _episode(word: str, steps: int) -> Episode:
    actions = tuple(f"take {word} {i}" for i in range(1, 4))
    shown = Observation(f"You see a {word} 1.\n", f"Holding: {word} 2\n", actions)
    step = Step(shown, (Turn("expert", actions[0], choice=0),), action=0, reward=0.0)
    return Episode(Task(word, "house"), (step,) * steps, success=True, truncated=False, seed=0)


def test_a_tokenizer_made_here_knows_words_of_the_whole_log_and_not_of_its_first_episodes(
    like: LIKE, tmp_path: Path
) -> None:
    run, words = RunFolder(tmp_path), ["dishsponge", "microwave"]
    run.teach(0, "train").parent.mkdir(parents=True)
    with EpisodeLog(run.teach(0, "train")) as log:
        log.append(_episode(words[0], TOKENIZER_ROWS + 1))
        log.append(_episode(words[1], TOKENIZER_ROWS // 2))
    recipe = like("model.vocab=330")
    artifact = EnvironmentPipeline.graph(recipe)["base model (seed 0)"]
    base(Context(recipe, run), artifact, lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint(0, "base"))
    assert [len(tokenizer.tokenize(f" {word}")) for word in words] == [1, 1]
