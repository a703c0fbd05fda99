"""Games from official files, wherever they lie, to a store and back; and what is said where that cannot be."""

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.game import TYPES
from reflectrl.wings.alfworld.importing import generate_games, import_games
from reflectrl.wings.alfworld.library import Entry, open_shelf, splits_in
from reflectrl.wings.alfworld.reading import compile_game
from tests.wings.alfworld.houses import PLANS, kitchen, write_kitchen

SIMPLE, HEAT = TYPES[0], TYPES[3]


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder in the official layout: one game of each type to train on, two in valid_seen."""
    folder = tmp_path / "json_2.1.1"
    for task_type in TYPES:
        write_kitchen(folder, "train", task_type)
    for trial in (2, 3):
        write_kitchen(folder, "valid_seen", SIMPLE, trial)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def content(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.iterdir()} if store.exists() else {}


def zipped(folder: Path, path: Path, only: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob(f"*{only}")):
            archive.write(file, file.relative_to(folder.parent))
    return path


def tarred(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


class TestImport:
    def test_games_come_back_as_they_were_compiled_with_their_plan_lengths(self, official: Path, store: Path) -> None:
        found = import_games([official], store)
        assert (found.bad, found.skipped) == ([], {})
        shelf = open_shelf(str(store), "train")
        assert shelf.entries == tuple(sorted(Entry(kitchen(kind)[0], kind, PLANS[kind]) for kind in TYPES))
        for kind in TYPES:
            game = shelf.game(kitchen(kind)[0])
            assert (game, game.plan_length) == (compile_game(*kitchen(kind)), PLANS[kind])
        assert not shelf.generated
        assert splits_in(store) == ["train", "valid_seen"]

    def test_progress_is_told(self, official: Path, store: Path) -> None:
        told: list[tuple[int, int]] = []
        import_games([official], store, lambda done, total, what: told.append((done, total)))
        assert told == [(number, 8) for number in range(1, 9)]

    @pytest.mark.parametrize("where", ["..", ".", "valid_seen", "valid_seen/*", "valid_seen/*/*2"])
    def test_any_folder_of_the_layout_will_do(self, official: Path, store: Path, where: str) -> None:
        (folder,) = official.glob(where) if "*" in where else [official / where]
        found = import_games([folder], store)
        assert kitchen(SIMPLE, 2)[0] in found.games["valid_seen"]

    @pytest.mark.parametrize("name", ["games.zip", "games.tar.xz", "games.tar.gz", "games.tgz", "."])
    def test_archives_and_folders_of_archives_give_the_same_store(
        self, official: Path, store: Path, tmp_path: Path, name: str
    ) -> None:
        packs = tmp_path / "packs"
        packs.mkdir()
        (packs / "LICENSE").write_text("MIT")
        if name == ".":
            tarred(official / "train", packs / "train.tar.xz")
            zipped(official / "valid_seen", packs / "valid_seen.zip")
        else:
            (zipped if name.endswith("zip") else tarred)(official, packs / name)
        import_games([official], store)
        import_games([packs / name], tmp_path / "other")
        assert content(tmp_path / "other") == content(store)

    def test_the_halves_of_a_game_may_lie_in_two_archives(self, official: Path, store: Path, tmp_path: Path) -> None:
        halves = [zipped(official, tmp_path / f"{half}.zip", half) for half in ("traj_data.json", "initial_state.pddl")]
        import_games(halves, store)
        import_games([official], tmp_path / "other")
        assert content(tmp_path / "other") == content(store)

    def test_one_half_alone_is_no_game(self, official: Path, store: Path, tmp_path: Path) -> None:
        half = zipped(official, tmp_path / "half.zip", "traj_data.json")
        assert "there is no initial_state.pddl" in refusal(lambda: import_games([half], store))

    def test_the_wording_of_the_reference_is_kept(self, official: Path, store: Path) -> None:
        home = write_kitchen(official, "train", SIMPLE)
        grammar = 'grammar :: """{"task": [{"rhs": "Your task is to: put some mug on sidetable."}]}"""'
        (home / "game.tw-pddl").write_text(json.dumps({"grammar": grammar, "solvable": True}))
        import_games([official], store)
        assert open_shelf(store, "train").game(kitchen(SIMPLE)[0]).description == "put some mug on sidetable."

    def test_what_the_official_sets_leave_out_is_left_out_and_counted(self, official: Path, store: Path) -> None:
        home = write_kitchen(official, "train", SIMPLE)
        (home / "game.tw-pddl").write_text(json.dumps({"grammar": "", "solvable": False}))
        for name in (
            "pick_and_place_with_movable_recep-Pen-Bowl-Desk-1",
            "pick_and_place_simple-AppleSliced-None-Desk-1",
        ):
            (official / "train" / name / "trial_1").mkdir(parents=True)
            (official / "train" / name / "trial_1" / "traj_data.json").write_text("{}")
        other = write_kitchen(official, "train", SIMPLE, 7)
        (other / "traj_data.json").write_text('{"task_type": "pick_and_eat"}')
        write_kitchen(official, "tests_seen", SIMPLE)
        found = import_games([official], store)
        assert found.skipped == {
            "marked as not solvable": 1,
            "movable in its name": 1,
            "Sliced in its name": 1,
            "task type pick_and_eat": 1,
            "in none of train, valid_seen, valid_unseen, valid_train": 1,
        }
        assert (len(found.games["train"]), found.bad) == (5, [])

    def test_new_games_join_those_that_are_there(self, official: Path, store: Path) -> None:
        import_games([official / "valid_seen"], store)
        write_kitchen(official, "valid_unseen", HEAT)
        import_games([official / "valid_unseen"], store)
        home = write_kitchen(official.parent / "more", "valid_seen", HEAT)
        import_games([home], store)
        assert splits_in(store) == ["valid_seen", "valid_unseen"]
        assert [entry.type for entry in open_shelf(store, "valid_seen").entries] == [SIMPLE, SIMPLE, HEAT]

    def test_replace_removes_them(self, official: Path, store: Path) -> None:
        import_games([official / "train"], store)
        import_games([official / "valid_seen"], store, replace=True)
        assert splits_in(store) == ["valid_seen"]


def cut(home: Path) -> None:
    path = home / "initial_state.pddl"
    path.write_text(path.read_text()[:2000])


def swap(old: str, new: str) -> Callable[[Path], None]:
    def damage(home: Path) -> None:
        path = home / "initial_state.pddl"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return damage


def rewrite(name: str, words: bytes) -> Callable[[Path], None]:
    return lambda home: bool((home / name).write_bytes(words)) and None


BAD = {
    "cut off": cut,
    "there is no traj_data.json": lambda home: (home / "traj_data.json").unlink(),
    "there is no initial_state.pddl": lambda home: (home / "initial_state.pddl").unlink(),
    "traj_data.json is not JSON": rewrite("traj_data.json", b'{"task_type'),
    "traj_data.json is not a JSON object": rewrite("traj_data.json", b"[]"),
    "game.tw-pddl is not JSON": rewrite("game.tw-pddl", b"\xff\xfe\xff"),
    "can't decode": rewrite("initial_state.pddl", b"(define \xff\xff)"),
    "it does not begin with": rewrite("initial_state.pddl", b""),
    "there is no microwave": swap("MicrowaveType", "ToasterType"),
    "fewer than 1 of apple": swap("pickupable Apple", "cleanable Apple"),
    "do not fit together": swap("(objectType Mug_bar_1 MugType)", ""),
}


class TestBadGames:
    @pytest.mark.parametrize("why", BAD)
    def test_they_are_named_and_the_others_imported(self, official: Path, store: Path, why: str) -> None:
        home = write_kitchen(official, "train", HEAT)
        BAD[why](home)
        ((name, reason),) = import_games([official], store).bad
        assert name == f"train/{kitchen(HEAT)[0]}"
        assert why in reason and "\n" not in reason
        assert len(open_shelf(store, "train").entries) == 5

    def test_without_one_good_game_the_store_stays_as_it_was(self, official: Path, store: Path, tmp_path: Path) -> None:
        import_games([official], store)
        before = content(store)
        home = write_kitchen(tmp_path / "bad", "train", HEAT)
        cut(home)
        message = refusal(lambda: import_games([tmp_path / "bad"], store, replace=True))
        assert f"train/{kitchen(HEAT)[0]}" in message and "cut off" in message
        assert content(store) == before

    def test_one_damaged_member_of_a_zip_is_one_bad_game(self, official: Path, store: Path, tmp_path: Path) -> None:
        path = zipped(official, tmp_path / "games.zip")
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo(f"json_2.1.1/train/{kitchen(HEAT)[0]}/initial_state.pddl")
        raw = bytearray(path.read_bytes())
        raw[member.header_offset + 300] ^= 255
        path.write_bytes(raw)
        ((name, _),) = import_games([path], store).bad
        assert name == f"train/{kitchen(HEAT)[0]}"


class TestSources:
    def test_a_missing_folder(self, tmp_path: Path, store: Path) -> None:
        assert "no such folder or archive" in refusal(lambda: import_games([tmp_path / "nowhere"], store))

    @pytest.mark.parametrize("name", ["empty.zip", "empty.tar.gz", "folder"])
    def test_nothing_in_it(self, tmp_path: Path, store: Path, name: str) -> None:
        path = tmp_path / "games" / name
        path.mkdir(parents=True)
        if name != "folder":
            (zipped if name.endswith("zip") else tarred)(path, path := tmp_path / name)
        assert "expected SPLIT/TASK/TRIAL/initial_state.pddl" in refusal(lambda: import_games([path], store))

    def test_a_folder_in_another_layout(self, official: Path, store: Path) -> None:
        (official / "train").rename(official / "training")
        message = refusal(lambda: import_games([official / "training"], store))
        assert "SPLIT being one of train, valid_seen" in message

    @pytest.mark.parametrize("name", ["games.zip", "games.tar.xz", "games.tar.gz"])
    @pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.9])
    def test_a_truncated_archive(self, official: Path, store: Path, tmp_path: Path, name: str, kept: float) -> None:
        path = (zipped if name.endswith("zip") else tarred)(official, tmp_path / name)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
        message = refusal(lambda: import_games([path], store))
        assert str(path) in message and "cut off, damaged, or not an archive" in message
        assert content(store) == {}

    def test_links_and_climbing_paths_in_an_archive_lead_nowhere(
        self, official: Path, store: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "games.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(official, "json_2.1.1")
            link = tarfile.TarInfo("train/a/b/initial_state.pddl")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(link)
            climbing = tarfile.TarInfo("../../train/../initial_state.pddl")
            archive.addfile(climbing, io.BytesIO())
        found = import_games([path], store)
        assert (len(found.games["train"]), found.bad) == (6, [])
        assert {entry.name for entry in tmp_path.iterdir()} == {"json_2.1.1", "games.tar.gz", "store"}

    def test_a_member_of_unlikely_size_is_refused(self, store: Path, tmp_path: Path) -> None:
        path = tmp_path / "games.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train/a/b/initial_state.pddl", b" " * (33 << 20))
        assert "a game's file has at most" in refusal(lambda: import_games([path], store))

    def test_a_store_that_cannot_be_written(self, official: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "cannot be written" in refusal(lambda: import_games([official], tmp_path / "file" / "store"))

    def test_a_failure_while_writing_leaves_nothing_half_written(self, official: Path, store: Path) -> None:
        (store / "valid_seen.games.jsonl").mkdir(parents=True)
        assert f"cannot be written to {store}" in refusal(lambda: import_games([official], store))
        assert [path.name for path in store.iterdir()] == ["valid_seen.games.jsonl"]


class TestShelf:
    def test_without_any_games_the_three_ways_are_named(self, store: Path) -> None:
        message = refusal(lambda: open_shelf(str(store), "train"))
        assert all(way in message for way in (str(store), "--download", "--from DIR", "--generate N"))

    def test_without_that_split_those_that_are_there_are_named(self, official: Path, store: Path) -> None:
        import_games([official], store)
        said = refusal(lambda: open_shelf(store, "valid_unseen"))
        assert "no games of valid_unseen, only of train, valid_seen: " in said and f"--store {store} --download" in said

    @pytest.mark.parametrize(
        ("old", "new", "line"), [('"id"', '"ID"', 1), ('"start":', '"Start":', 3), ('"inside":[[', '"inside":[', 2)]
    )
    def test_a_corrupt_line_is_named(self, official: Path, store: Path, old: str, new: str, line: int) -> None:
        import_games([official], store)
        path = store / "train.games.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new)
        path.write_text("".join(lines))
        message = refusal(lambda: [open_shelf(store, "train").game(kitchen(kind)[0]) for kind in TYPES])
        assert f"{path}, line {line}: not a cached game" in message

    def test_a_cut_off_file_is_refused(self, official: Path, store: Path) -> None:
        import_games([official], store)
        path = store / "train.games.jsonl"
        path.write_bytes(path.read_bytes()[:-20])
        assert "line 6: not a cached game" in refusal(lambda: open_shelf(store, "train"))

    def test_an_unknown_game(self, official: Path, store: Path) -> None:
        import_games([official], store)
        assert "has no game 'a/b'" in refusal(lambda: open_shelf(store, "train").game("a/b"))

    def test_it_is_shared_until_the_file_changes(self, official: Path, store: Path) -> None:
        import_games([official / "valid_seen"], store)
        first = open_shelf(str(store), "valid_seen")
        assert open_shelf(store, "valid_seen") is first
        assert first.game(kitchen(SIMPLE, 2)[0]) is first.game(kitchen(SIMPLE, 2)[0])
        write_kitchen(official, "valid_seen", HEAT)
        import_games([official / "valid_seen"], store)
        assert len(open_shelf(store, "valid_seen").entries) == len(first.entries) + 1

    def test_the_default_store_follows_the_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path))
        assert data_folder("alfworld") == tmp_path / "alfworld"
        monkeypatch.delenv("REFLECTRL_DATA")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert data_folder("alfworld") == tmp_path / ".cache" / "reflectrl" / "alfworld"

    def test_importing_the_module_leaves_nothing_behind(self, tmp_path: Path) -> None:
        subprocess.run(
            [sys.executable, "-B", "-c", "import reflectrl.wings.alfworld.importing"],
            cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)}, check=True,
        )  # fmt: skip
        assert list(tmp_path.iterdir()) == []


class TestGenerated:
    def test_the_sets_have_their_sizes_and_no_game_in_common(self, store: Path) -> None:
        generate_games(20, 0, store)
        shelves = {split: open_shelf(store, split) for split in splits_in(store)}
        assert {split: len(shelf.entries) for split, shelf in shelves.items()} == {
            "train": 20, "valid_seen": 2, "valid_unseen": 2, "valid_train": 2
        }  # fmt: skip
        ids = [entry.id for shelf in shelves.values() for entry in shelf.entries]
        assert len(set(ids)) == len(ids)
        assert all(shelf.generated for shelf in shelves.values())
        assert all(entry.plan_length > 0 for entry in shelves["train"].entries)

    def test_the_seed_decides_and_the_last_call_counts(self, store: Path, tmp_path: Path) -> None:
        generate_games(4, 1, store)
        generate_games(2, 2, store)
        generate_games(2, 2, tmp_path / "other")
        assert content(store) == content(tmp_path / "other")

    def test_real_and_generated_games_are_not_mixed(self, official: Path, store: Path) -> None:
        generate_games(1, 0, store)
        assert "--replace" in refusal(lambda: import_games([official], store))
        import_games([official], store, replace=True)
        assert splits_in(store) == ["train", "valid_seen"]
        assert not open_shelf(store, "train").generated
        assert "--replace" in refusal(lambda: generate_games(1, 0, store))
        generate_games(1, 0, store, replace=True)
        assert open_shelf(store, "train").generated
