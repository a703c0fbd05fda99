"""Recipes: what is read, what is refused and with which line, and that writing and reading agree."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.config import (
    EvalConfig,
    ModelConfig,
    PlayConfig,
    Recipe,
    RLConfig,
    SFTConfig,
    TeachConfig,
    from_dict,
    load_recipe,
    parse_overrides,
    read_recipe,
    to_toml,
)
from reflectrl.core.config.folders import data_folder, user_folder
from reflectrl.core.config.reference import keys
from reflectrl.core.config.values import RENAMED
from reflectrl.core.types import UserError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_recipe(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_recipe


def refusal(path: Path, *overrides: str) -> str:
    """The one line with which a recipe is refused."""
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestReading:
    def test_an_empty_recipe_is_all_defaults_and_named_after_its_file(self, write: Any) -> None:
        assert load_recipe(write("")) == dataclasses.replace(Recipe(), name="mine")

    def test_values_of_every_kind(self, write: Any) -> None:
        recipe = load_recipe(
            write(
                """
                name = "short"
                seeds = [1, 2]
                [env]
                name = "corridor"
                size = 4
                [rl]
                lr = 1
                normalise = false
                algorithm = "ppo"
                """
            )
        )
        assert (recipe.name, recipe.seeds) == ("short", (1, 2))
        assert recipe.env == {"name": "corridor", "size": 4}
        assert (recipe.rl.lr, recipe.rl.normalise, recipe.rl.algorithm) == (1.0, False, "ppo")
        assert type(recipe.rl.lr) is float

    def test_text_in_quotes_stays_text(self, write: Any) -> None:
        recipe = read_recipe(write('[env]\nname = "x:Y"\nlevel = "3"\nflag = "true"'))
        assert recipe.env == {"name": "x:Y", "level": "3", "flag": "true"}

    def test_env_keeps_lists_and_tables(self, write: Any) -> None:
        recipe = read_recipe(write('[env]\nname = "x:Y"\nsizes = [[1, 2], ["a"]]\nworld.depth = 2'))
        assert recipe.env == {"name": "x:Y", "sizes": [[1, 2], ["a"]], "world": {"depth": 2}}


class TestOverrides:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--rl.lr", "1e-4"], [("rl.lr", "1e-4")]),
            (["--rl.lr=1e-4"], [("rl.lr", "1e-4")]),
            (["rl.lr=1e-4"], [("rl.lr", "1e-4")]),
            (["--sft.batch-size", "4"], [("sft.batch_size", "4")]),
            (["--env.gap", "-1", "--name", "a"], [("env.gap", "-1"), ("name", "a")]),
            (["--env.text=a=b"], [("env.text", "a=b")]),
            ([], []),
        ],
    )
    def test_spellings(self, words: list[str], expected: list[tuple[str, str]]) -> None:
        assert parse_overrides(words) == expected

    @pytest.mark.parametrize(
        ("words", "named"),
        [(["--rl.lr"], "--rl.lr"), (["--rl.lr", "--name", "a"], "--rl.lr"), (["corridor"], "'corridor'")],
    )
    def test_a_word_without_its_value_is_named(self, words: list[str], named: str) -> None:
        with pytest.raises(UserError, match=named):
            parse_overrides(words)

    @pytest.mark.parametrize(
        ("word", "read"),
        [
            ("--rl.lr=1e-4", lambda r: r.rl.lr == 1e-4),
            ("--rl.lr=1", lambda r: type(r.rl.lr) is float),
            ("--rl.normalise=false", lambda r: r.rl.normalise is False),
            ("--rl.algorithm=ppo", lambda r: r.rl.algorithm == "ppo"),
            ("--name=3", lambda r: r.name == "3"),
            ("--seeds=0,1,2", lambda r: r.seeds == (0, 1, 2)),
            ("--seeds=[0, 1]", lambda r: r.seeds == (0, 1)),
            ("--seeds=7", lambda r: r.seeds == (7,)),
            ("--arms=random,sft", lambda r: r.arms == ("random", "sft")),
            ("--arms=[random, sft]", lambda r: r.arms == ("random", "sft")),
            ('--arms=["sft"]', lambda r: r.arms == ("sft",)),
            ("--eval.stages=", lambda r: r.eval.stages == ()),
            ("--teach.noise=0,0.5", lambda r: r.teach.noise == (0.0, 0.5)),
            ("--env.name=corridor", lambda r: r.env["name"] == "corridor"),
            ("--env.size=8", lambda r: r.env["size"] == 8),
            ("--env.slippery=true", lambda r: r.env["slippery"] is True),
            ("--env.day=2020-01-01", lambda r: r.env["day"] == "2020-01-01"),
            ("--env.colour=#fff", lambda r: r.env["colour"] == "#fff"),
            ("--env.text=1\ny = 2", lambda r: r.env["text"] == "1\ny = 2"),
            ("--env.world.depth=2", lambda r: r.env["world"] == {"depth": 2}),
        ],
    )
    def test_a_word_becomes_what_the_field_asks_for(self, write: Any, word: str, read: Any) -> None:
        assert read(load_recipe(write(""), [word]))

    def test_they_win_over_the_file_and_the_later_one_wins(self, write: Any) -> None:
        path = write("[rl]\nupdates = 5")
        assert load_recipe(path, ["--rl.updates", "6", "--rl.updates", "7"]).rl.updates == 7

    def test_a_key_below_a_value_is_refused(self, write: Any) -> None:
        assert "'lr' is not a section" in refusal(write("[rl]\nlr = 0.1"), "--rl.lr.x", "1")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "fragments"),
        [
            ("nmae = 'x'", ["'nmae'", "'name'"]),
            ("[rl]\nupdate = 3", ["'rl.update'", "'updates'"]),
            ("[rll]\nupdates = 3", ["'rll'", "'rl'"]),
            ("rl = 3", ["'rl'", "section"]),
            ("env = 'corridor'", ["'env'", "section"]),
            ("[rl]\nupdates = 1.5", ["'rl.updates'", "whole number", "1.5"]),
            ("[rl]\nupdates = true", ["'rl.updates'", "whole number"]),
            ("[rl]\nupdates = '3'", ["'rl.updates'", "whole number", "'3'"]),
            ("[rl]\nlr = 'fast'", ["'rl.lr'", "a number", "'fast'"]),
            ("[rl]\nlr = false", ["'rl.lr'", "a number"]),
            ("[rl]\nlr = 2020-01-01", ["'rl.lr'", "a number"]),
            ("[rl]\nnormalise = 1", ["'rl.normalise'", "true or false"]),
            ("name = 3", ["'name'", "text"]),
            ("arms = 'random'", ["'arms'", "list"]),
            ("arms = [1]", ["'arms[0]'", "text"]),
            ("seeds = [0, 'a']", ["'seeds[1]'", "whole number"]),
            ("[rl]\nalgorithm = 'pop'", ["'rl.algorithm'", "reinforce, ppo"]),
            ("[rl]\nalgorithm = 3", ["'rl.algorithm'", "reinforce, ppo"]),
            ("[rl]\nalgorithm = ['ppo']", ["'rl.algorithm'", "reinforce, ppo"]),
            ("[eval]\nsampling = ['greedy', 'warm']", ["'eval.sampling[1]'", "greedy, sampled"]),
            ("[env]\nname = 'corridor'\nday = 2020-01-01", ["'env.day'", "2020-01-01"]),
            ("[env]\nname = 'corridor'\ndays = [1, 2020-01-01]", ["'env.days[1]'"]),
        ],
    )
    def test_unknown_keys_and_wrong_types_name_file_key_and_remedy(
        self, write: Any, text: str, fragments: list[str]
    ) -> None:
        line = refusal(write(text))
        assert all(fragment in line for fragment in ["mine.toml", *fragments]), line

    @pytest.mark.parametrize(
        ("word", "range_"),
        [
            ("--sft.batch_size=0", "at least 1"),
            ("--rl.updates=-1", "at least 1"),
            ("--rl.temperature=0", "above 0"),
            ("--rl.temperature=-1", "above 0"),
            ("--rl.temperature=nan", "above 0"),
            ("--rl.lr=inf", "above 0"),
            ("--rl.gate=1.01", "at most 1"),
            ("--rl.gamma=-0.1", "at least 0"),
            ("--model.lora_rank=-1", "at least 0"),
            ("--model.lora_dropout=1", "below 1"),
            ("--eval.confidence=1", "below 1"),
            ("--eval.confidence=0", "above 0"),
            ("--play.reflection_tokens=0", "at least 1"),
            ("--processes=0", "at least 1"),
            ("--seeds=-1", "at least 0"),
            ("--seeds=1,1", "none of them twice"),
            ("--seeds=", "at least one"),
            ("--arms=sft,sft", "none of them twice"),
            ("--teach.noise=0.5,2", "at most 1"),
            ("--teach.noise=", "at least one"),
            ("--model.device=gpu", "cuda"),
            ("--name=../other", "folder"),
            ("--name=", "folder"),
            ("--name=.hidden", "folder"),
        ],
    )
    def test_values_out_of_range_name_the_key_and_the_range(self, write: Any, word: str, range_: str) -> None:
        line = refusal(write(""), word)
        key = word.removeprefix("--").split("=")[0]
        assert f"'{key}" in line
        assert range_ in line

    @pytest.mark.parametrize(
        ("words", "fragments"),
        [
            (["--model.width=100", "--model.heads=3"], ["[model]", "width", "heads"]),
            (["--sft.batch_size=2", "--sft.accumulate=4"], ["[sft]", "accumulate", "batch_size"]),
            (["--rl.baseline=leave-one-out"], ["[rl]", "group"]),
            (["--rl.episodes=10", "--rl.group=4"], ["[rl]", "episodes", "group"]),
            (["--rl.refills=1", "--rl.group=4", "--rl.baseline=gigpo"], ["[rl]", "refills", "gigpo", "dr-grpo"]),
            (["--rl.critic_epochs=5", "--rl.critic_shares=true"], ["[rl]", "critic_epochs", "critic_shares"]),
            (["--rl.gamma=0.9", "--rl.group=4", "--rl.baseline=grpo"], ["[rl]", "gamma", "grpo"]),
            (["--rl.clip_high=0.3"], ["[rl]", "clip_high", "ppo"]),
            (["--rl.algorithm=ppo", "--rl.target_kl=0.01", "--rl.update_epochs=1"], ["target_kl", "update_epochs"]),
            (["--rl.adaptive_kl=6", "--rl.kl_coef=0"], ["[rl]", "adaptive_kl", "kl_coef"]),
            (["--rl.adaptive_kl=6", "--rl.adaptive_kl_horizon=5"], ["[rl]", "adaptive_kl_horizon", "episodes"]),
            (["--rl.self_imitation=true", "--rl.replay=0"], ["[rl]", "self_imitation", "replay"]),
        ],
    )
    def test_keys_that_contradict_each_other_are_both_named(
        self, write: Any, words: list[str], fragments: list[str]
    ) -> None:
        line = refusal(write(""), *words)
        assert all(fragment in line for fragment in fragments), line

    @pytest.mark.parametrize(
        "word", ["--rl.normalise=maybe", "--rl.normalise=1", "--rl.updates=1e3", "--rl.updates=many", "--rl=3"]
    )
    def test_words_of_the_wrong_type(self, write: Any, word: str) -> None:
        assert word.removeprefix("--").split("=")[0] in refusal(write(""), word)

    def test_same_noise_twice_is_allowed(self, write: Any) -> None:
        assert load_recipe(write(""), ["--teach.noise=0.5,0.5"]).teach.noise == (0.5, 0.5)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert "absent.toml: No such file" in refusal(tmp_path / "absent.toml")

    def test_a_folder(self, tmp_path: Path) -> None:
        assert str(tmp_path) in refusal(tmp_path)

    @pytest.mark.parametrize(
        "text", ["name = ", "name = 'a'\nname = 'b'", "[rl]\n[rl]", "x = " + "[" * 5000, "seeds = [" + "9" * 5000 + "]"]
    )
    def test_what_is_no_toml_names_the_file(self, write: Any, text: str) -> None:
        assert "mine.toml: not valid TOML" in refusal(write(text))

    def test_other_encodings(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.toml"
        path.write_bytes('name = "é"'.encode("latin-1"))
        assert "latin.toml: not valid TOML" in refusal(path)

    def test_long_values_are_cut(self, write: Any) -> None:
        assert len(refusal(write(f"[rl]\nlr = '{'x' * 10_000}'"))) < 400


SECTIONS = {key.section for key in keys()}
"""With those of the wings that are there."""


class TestRenamed:
    @pytest.mark.parametrize(
        ("old", "new"),
        [(old, new) for old, new in RENAMED.items() if isinstance(old, str) and old.split(".")[0] in SECTIONS],
    )
    def test_an_old_key_is_refused_with_the_new_one(self, write: Any, old: str, new: str) -> None:
        section, key = old.split(".")
        assert f"unknown key {old!r}; it is called {new!r} now" in refusal(write(f"[{section}]\n{key} = 1"))
        assert f"it is called {new!r} now" in refusal(write(""), f"--{old}=1")
        assert new in {key.dotted for key in keys()}

    def test_an_old_value_is_refused_with_the_new_one(self, write: Any) -> None:
        assert "'rl.curriculum' is 'thirds'; it is called 'equal' now" in refusal(write(""), "--rl.curriculum=thirds")


class TestRemoved:
    def test_a_removed_key_is_read_over_at_its_old_default_and_unknown_otherwise(self, write: Any) -> None:
        """Run folders and agents of earlier versions hold every key."""
        assert load_recipe(write("[model]\nshard = false\nwidth = 64")).model.width == 64
        assert "unknown key 'model.shard'" in refusal(write("[model]\nshard = true"))
        assert "unknown key 'model.shard'" in refusal(write(""), "--model.shard=true")


STRANGER = """
from dataclasses import dataclass
from reflectrl.core.config import FreeSection
from reflectrl.core.config.rules import Count


@dataclass(frozen=True)
class Garden:
    \"\"\"Keys of a stranger.\"\"\"

    beds: Count = 2
    \"\"\"How many beds.\"\"\"


class Tools(FreeSection):
    \"\"\"Tools by name.\"\"\"
"""


class TestBroughtSections:
    @pytest.fixture(autouse=True)
    def _announced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An installed package that brings two sections."""
        (tmp_path / "strange_garden.py").write_text(STRANGER, encoding="utf-8")
        info = tmp_path / "garden-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: garden\nVersion: 1.0\n")
        points = "[reflectrl.recipe_sections]\ngarden = strange_garden:Garden\ntools = strange_garden:Tools\n"
        (info / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(tmp_path))

    def test_they_are_read_checked_and_written(self, write: Any) -> None:
        recipe = read_recipe(write("[garden]\nbeds = 3\n[tools]\nspade = 1"), ["--garden.beds=4", "--tools.rake=2"])
        assert recipe.sections["garden"].beds == 4 and recipe.sections["tools"] == {"spade": 1, "rake": 2}
        assert from_dict(Recipe, tomllib.loads(to_toml(recipe)), where="x") == recipe
        assert read_recipe(write("")).sections["garden"].beds == 2
        line = refusal(write("[garden]\nbeds = 0"))
        assert "'garden.beds' is 0; it must be at least 1" in line
        assert "'garden.bed'" in refusal(write("[garden]\nbed = 1")) and "'beds'" in refusal(write("garden.bed = 1"))

    def test_their_keys_are_listed(self) -> None:
        keys.cache_clear()
        found = {key.dotted: key for key in keys()}
        keys.cache_clear()
        assert found["garden.beds"].description == "How many beds." and found["tools"].type == "table"

    def test_code_that_a_free_section_names_is_not_run_unasked(self, write: Any) -> None:
        assert "tools.x.use = stranger:Spade" in refusal(write('[tools]\nx.use = "stranger:Spade"'))


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
COUNTS = st.integers(1, 10**6)
RATES = st.floats(1e-12, 1e6)
SHARES = st.floats(0, 1)
PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECIPES = st.builds(
    Recipe,
    name=NAMES,
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True).map(tuple),
    arms=st.lists(TEXT, min_size=1, max_size=4, unique=True).map(tuple),
    threads=st.integers(0, 64),
    processes=COUNTS,
    env=st.dictionaries(TEXT, PLAIN, max_size=4),
    model=st.builds(ModelConfig, source=TEXT, width=COUNTS.map(lambda n: 4 * n), dtype=st.just("bfloat16")),
    play=st.builds(PlayConfig, reflection_temperature=RATES, result_cache=COUNTS),
    teach=st.builds(TeachConfig, noise=st.lists(SHARES, min_size=1, max_size=3).map(tuple), unsafe_noise=st.booleans()),
    sft=st.builds(SFTConfig, lr=RATES, warmup=SHARES, steps=COUNTS, negatives=st.booleans()),
    rl=st.builds(RLConfig, lr=RATES, gate=SHARES, algorithm=st.sampled_from(["ppo", "reinforce"])),
    eval=st.builds(EvalConfig, stages=st.lists(TEXT, max_size=3).map(tuple), confidence=st.floats(0.01, 0.99)),
)


@settings(max_examples=60, deadline=None)
@given(recipe=RECIPES)
def test_writing_and_reading_a_recipe_gives_it_back(recipe: Recipe) -> None:
    assert from_dict(Recipe, tomllib.loads(to_toml(recipe)), where="x") == recipe


@settings(max_examples=100, deadline=None)
@given(
    word=st.tuples(st.sampled_from([key.dotted for key in keys()]), TEXT).map(lambda pair: f"--{pair[0]}={pair[1]}"),
)
def test_any_word_is_either_read_or_refused_in_one_line(tmp_path_factory: Any, word: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("", encoding="utf-8")
    try:
        load_recipe(path, [word])
    except UserError as error:
        assert "\n" not in str(error)


class TestReference:
    def test_every_key_is_described(self) -> None:
        assert all(key.description for key in keys())

    def test_the_printed_defaults_are_the_defaults(self, write: Any) -> None:
        """Top-level keys come first, as TOML wants it."""
        lines = [f"{key.dotted} = {key.default}" for key in sorted(keys(), key=lambda key: "." in key.dotted)]
        assert load_recipe(write("\n".join(lines))) == Recipe()


# ---- folders of the user ---------------------------------------------------------------------------------------------


@pytest.fixture
def no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A new home folder, and no variable that names another place."""
    for name in ("REFLECTRL_DATA", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_every_folder_of_the_user_follows_the_specification(no_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder("models") == no_folders / ".cache/reflectrl/models"
    assert user_folder("config") == no_folders / ".config/reflectrl"
    monkeypatch.setenv("XDG_CACHE_HOME", "/other/caches")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/other/settings")
    assert data_folder("models") == Path("/other/caches/reflectrl/models")
    assert user_folder("config") == Path("/other/settings/reflectrl")
    for relative in ("caches", "./caches", "../caches", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert data_folder("models") == no_folders / ".cache/reflectrl/models"
    monkeypatch.setenv("REFLECTRL_DATA", "/data")
    assert data_folder("models") == Path("/data/models")


def test_data_of_an_earlier_version_are_still_found(no_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, later = no_folders / ".cache/reflectrl/models", no_folders / "caches/reflectrl/models"
    earlier.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_folders / "caches"))
    assert (data_folder("models"), data_folder("hha")) == (earlier, later.with_name("hha"))
    later.mkdir(parents=True)
    assert data_folder("models") == later


@pytest.mark.parametrize("home", ["somewhere", "./here"])
def test_a_user_without_a_home_folder_is_told_so(no_folders: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    with pytest.raises(UserError, match="no home folder; set HOME"):
        data_folder("models")
