"""The commands that `docs/reproduction.md` names for Reflect-RL, stage by stage, on tiny data and with tiny settings.

The stages of a recipe share a folder, so each makes only what is new. The commands of Leftover Lunch are run by
`text/rewards/test_families.py`.
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from reflectrl.cli import main
from reflectrl.core.episodes import read_episodes
from tests.wings.alfworld.houses import kitchen
from tests.wings.autoexplore.written import write_shop

TINY = shlex.split(
    "--processes 1 --seeds 0 --model.layers 1 --model.width 16 --model.heads 2 --model.mixed_precision off"
    " --model.device cpu --play.reflection_tokens 4 --teach.tasks 4 --sft.steps 2 --sft.policy_steps 1"
    " --sft.batch_size 4 --sft.eval_rows 4 --rl.updates 4 --rl.episodes 2 --rl.eval_every 4 --rl.eval_episodes 2"
    " --eval.episodes 2 --eval.repeats 2"
)


def taxi(folder: Path) -> list[str]:
    return []


def alfworld(folder: Path) -> list[str]:
    """Games of the paper's subset, "put a tomato in the microwave", in the official layout."""
    renamed = {"Mug": "Tomato", "Microwave": "Shelf", "SideTable": "Microwave"}
    for trial, split in enumerate(("train", "train", "valid_train", "valid_seen")):
        name, problem, trajectory = kitchen("pick_and_place_simple", trial)
        texts = [name, problem, json.dumps(trajectory)]
        for old, new in renamed.items():
            texts = [text.replace(old, new) for text in texts]
        home = folder / "official" / split / texts[0]
        home.mkdir(parents=True)
        (home / "initial_state.pddl").write_text(texts[1], encoding="utf-8")
        (home / "traj_data.json").write_text(texts[2], encoding="utf-8")
    assert main(["data", "alfworld", "--from", str(folder / "official")]) == 0
    return ["--env.horizon", "5"]


def autoexplore(folder: Path) -> list[str]:
    """A library of three small repositories, made in the two stages of the released code."""
    things = ("ship", "sail"), ("bread", "cake"), ("lamp", "bulb")
    shops = [str(write_shop(folder / f"shop{number}", names)) for number, names in enumerate(things)]
    assert main(["data", "autoexplore", "--from", *shops, "--stage", "repos"]) == 0
    assert main(["data", "autoexplore", "--stage", "questions", "--per-repo", "6"]) == 0
    return ["--env.horizon", "5", "--teach.negatives", "1"]


@pytest.mark.parametrize("family", [taxi, alfworld, autoexplore])
def test_the_paper_s_stages_follow_one_another(
    family: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    recipe = f"{family.__name__}-paper"
    words = [recipe, "--arms", "no-reflection,reflect-rl", *TINY, *family(tmp_path)]
    run = tmp_path / "runs" / recipe

    assert main(["teach", *words]) == 0
    taught = list(read_episodes(run / "episodes" / "teach-seed0-train.jsonl"))
    assert taught and any(step.reflection for episode in taught for step in episode.steps)
    assert main(["data", "sft", "--from", str(run), "--to", "rows"]) == 0
    assert (tmp_path / "rows" / "sft_reflection.jsonl").stat().st_size > 0

    assert main(["sft", *words]) == 0
    trained = {path.name for path in (run / "checkpoints" / "seed0").iterdir()}
    assert main(["rl", *words]) == 0
    assert {path.name for path in (run / "checkpoints" / "seed0").iterdir()} > trained
    assert not (run / "results.json").exists()

    assert main(["eval", *words]) == 0
    rows = json.loads((run / "results.json").read_text(encoding="utf-8"))["rows"]
    assert {row["arm"] for row in rows} == {"no-reflection", "reflect-rl"}
    assert {row["sampling"] for row in rows} == {"sampled"} and all(row["episodes"] >= 2 for row in rows)
    before = (run / "results.json").read_bytes()
    assert main(["run", *words]) == 0
    assert (run / "results.json").read_bytes() == before and (run / "report.html").is_file()


def test_rl_goes_on_from_the_players_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm "rl-only" starts RL from what is loaded; other arms would imitate first."""
    monkeypatch.chdir(tmp_path)
    assert main(["rl", "taxi-paper", "--arms", "no-reflection", *TINY]) == 0
    words = ["--load", "runs/taxi-paper", "--load-arm", "no-reflection", "--folder", "later"]
    assert main(["rl", "taxi-paper", "--arms", "rl-only", *TINY, *words]) == 0
    trained, later = (
        load_file(f"{run}/checkpoints/seed0/rl-{arm}/model.safetensors")
        for run, arm in (("runs/taxi-paper", "no-reflection"), ("later", "rl-only"))
    )
    assert trained.keys() == later.keys()
    farthest = max(float((later[name] - tensor).abs().max()) for name, tensor in trained.items())
    assert farthest < 5 * 2e-4  # four steps of Adam from there; another initialisation differs by 0.1
    assert not (tmp_path / "later" / "episodes" / "teach-seed0-train.jsonl").exists()
