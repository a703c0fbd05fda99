"""Unseen rooms made of seen ones: no scene may be on both sides."""

from pathlib import Path

from benchmarks.alfworld_unseen import main, scene_of
from reflectrl.wings.alfworld.importing import generate_games
from reflectrl.wings.alfworld.library import open_shelf


def test_no_scene_of_the_unseen_games_is_in_any_other_set(tmp_path: Path) -> None:
    there, made = tmp_path / "store", tmp_path / "made"
    generate_games(40, 0, there)
    main(str(there), str(made), "4")
    splits = ("train", "valid_train", "valid_seen", "valid_unseen")
    scenes = {split: {scene_of(entry.id) for entry in open_shelf(made, split).entries} for split in splits}
    assert scenes["valid_unseen"] and all(scene.endswith("4") for scene in scenes["valid_unseen"])
    for split in splits[:3]:
        assert scenes[split] and not scenes[split] & scenes["valid_unseen"]
    games = {split: {entry.id for entry in open_shelf(there, split).entries} for split in splits}
    kept = {entry.id for split in ("train", "valid_train", "valid_unseen") for entry in open_shelf(made, split).entries}
    assert kept == games["train"] | games["valid_train"]
