"""Export of trained players and their environment to a folder that a browser plays, from a disk or any web server."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from reflectrl.api import load_agent
from reflectrl.core.config import load_recipe
from reflectrl.core.config.folders import writing
from reflectrl.core.envs import make
from reflectrl.core.envs.base import tasks_named
from reflectrl.core.players import Player
from reflectrl.core.prompts import policy_prompt, reflector_prompt
from reflectrl.core.prompts.tokens import beginning
from reflectrl.core.types import Observation, UserError
from reflectrl.learn.checkpoint import write_folder
from reflectrl.models.byte_pairs import marks_words
from reflectrl.models.cards import fingerprint
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.report import write_report
from reflectrl.tools.browser.graph import export_onnx, require_packages, shape_of_cache
from reflectrl.tools.browser.runtime import PACKAGES, find_runtime
from reflectrl.tools.browser.world import World, explore

PAGE = ("index.html", "page.css", "players.js", "page.js")
MOST_PARAMETERS = 50_000_000
"""Largest number of parameters of a model. A larger page would take minutes to load, and seconds for each step."""
CHECKED = 40
"""Largest number of observations that the page encodes when it is loaded, to compare the tokens."""
STATE, REFLECTION, LABEL, ACTION = "\ue000", "\ue001", "\ue002", "\ue003"
"""Placeholders for the parts of a prompt that vary. No template contains these characters."""


@dataclass(frozen=True)
class Exported:
    """Result of an export: the environment's table, the folder's size in bytes, and the differences from play in
    Python.
    """

    world: World
    bytes: int
    notes: list[str]


def export_run(
    run: Path,
    out: Path,
    arm: str = "",
    seed: int = 0,
    split: str = "test",
    stage: str | None = None,
    tasks: int = 50,
    states: int = 100_000,
    runtime: Path | None = None,
    trust: bool = False,
) -> Exported:
    """Write the trained players of a run and its first tasks as a page. An existing page is replaced.

    Args:
        arm: arm to export; "" takes the last trained arm of the recipe.
        states: largest number of the environment's states to visit.
        runtime: see `find_runtime`.
        trust: let the run's recipe use code that it names.

    Raises:
        UserError: no such run, arm, split or stage; the arm is not trained; the environment does not fit in the
            table; or `out` holds something else.
    """
    require_free(out)
    require_packages()
    if not (run / "recipe.toml").is_file():
        raise UserError(f"{run} is not a run folder (it has no recipe.toml)")
    recipe = load_recipe(run / "recipe.toml", trust=trust)
    agent = load_agent(run, arm, seed, trust=trust)
    policy, reflector = playable(agent.player, agent.reflector)
    runtime_files = find_runtime(runtime)
    env = make(recipe.env)
    first_tasks = tasks_named(env, split, stage)[:tasks]
    if not first_tasks:
        raise UserError(f"{recipe.env['name']} has no {split} tasks")
    world = explore(env, first_tasks, states)
    about = {"env": recipe.env["name"], "agent": agent.name, "recipe": recipe.name, "split": split}
    size = write_page(policy, reflector, world, about, out, runtime_files)
    if (run / "report.html").is_file():
        write_report(run)  # which links to the page if it lies in the run folder
    return Exported(world, size, notes(policy, reflector))


def write_page(
    policy: Policy,
    reflector: Reflector | None,
    world: World,
    about: Mapping[str, str],
    out: Path,
    runtime: Mapping[str, bytes],
) -> int:
    """Write the page and return its size in bytes.

    Args:
        policy: chooses the actions. In the browser its choices are greedy, and actions are listed in the environment's
            order.
        reflector: writes, greedily, what the policy reads; None for a policy without one.
        about: names of the environment, the players, their recipe, and the split of the tasks.
        runtime: files that `find_runtime` found.
    """
    with tempfile.TemporaryDirectory() as temp_folder:
        graphs = {}
        for name, player in (("policy", policy), ("reflector", reflector)):
            if player is not None:
                path = Path(temp_folder) / f"{name}.onnx"
                export_onnx(player.lm, path)
                graphs[name] = path.read_bytes()
    data = {
        "agent": _json(describe(policy, reflector, world, about)),
        "world": _json(world.as_json()),
        "tokenizer": policy.lm.tokenizer.backend_tokenizer.to_str().encode(),
        "ort": runtime["ort.wasm.bundle.min.mjs"],
        "wasm": runtime["ort-wasm-simd-threaded.wasm"],
        "tokenizers": runtime["tokenizers.min.mjs"],
        **graphs,
    }

    def fill(folder: Path) -> None:
        for name in PAGE:
            (folder / name).write_bytes(files("reflectrl.tools.browser").joinpath("page", name).read_bytes())
        (folder / "data").mkdir()
        for name, content in data.items():
            # A page opened from a disk may load scripts only, so every file is packed into a script.
            packed = base64.b64encode(gzip.compress(content, mtime=0)).decode()
            (folder / "data" / f"{name}.js").write_text(f'reflectrl.put("{name}", "{packed}");\n', encoding="ascii")
        licences = f"{_notice()}\n\n{runtime['LICENSE'].decode()}"
        (folder / "LICENCES.txt").write_text(licences, encoding="utf-8")

    with writing(out):
        write_folder(out, fill, share=False)
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def require_free(out: Path) -> None:
    """Refuse to write over anything but an exported page."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "data" / "world.js").is_file())):
        raise UserError(f"{out} already exists and is not an exported page; name another folder")


def playable(player: Player, reflector: Player | None) -> tuple[Policy, Reflector | None]:
    """Return the players, if a browser can play them.

    Raises:
        UserError: they are not language models of moderate size, score actions by their texts, carry reflections,
            or have different tokenizers.
    """
    if type(player) is not Policy or not isinstance(reflector, Reflector | None):
        unsupported = player if type(player) is not Policy else reflector
        raise UserError(
            f"{type(unsupported).__name__} cannot be exported; only language models as policy and reflector can"
        )
    if player.scoring != "enumeration":
        raise UserError(
            f"the page chooses by labels, but this policy was trained with play.scoring = {player.scoring!r}"
        )
    if reflector is not None and reflector.carries:
        raise UserError('the page does not carry reflections to the next step, as play.reflection = "carried" needs')
    for lm in (player.lm, *([reflector.lm] if reflector else [])):
        size = sum(weight.numel() for weight in lm.core.parameters())
        if size > MOST_PARAMETERS:
            raise UserError(
                f"a model of {size / 1e6:.0f} million parameters is too large for a page (at most 50 million)"
            )
        if lm.chat is not None:
            raise UserError("the page does not support chat templates; train with --model.chat off")
        _require_plain(lm)
    if reflector and fingerprint(player.lm.tokenizer) != fingerprint(reflector.lm.tokenizer):
        raise UserError("policy and reflector have different tokenizers; the page has one")
    return player, reflector


def _require_plain(lm: LanguageModel) -> None:
    backend: Any = getattr(lm.tokenizer, "backend_tokenizer", None)
    kinds = (type(getattr(backend, "model", None)).__name__, type(getattr(backend, "decoder", None)).__name__)
    strange = backend is None or any(
        token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()
    )
    is_plain = kinds == ("BPE", "ByteLevel") and backend.normalizer is None
    if strange or not (is_plain or marks_words(backend)):
        raise UserError(
            "the page splits texts by byte-level BPE, as tokenizers made here and those without a normaliser do, but"
            " this model's tokenizer does not"
        )


def notes(policy: Policy, reflector: Reflector | None) -> list[str]:
    """List the differences between play on the page and play in Python."""
    departures = []
    if policy.shuffle_labels:
        departures.append("play.shuffle_labels is on: the page lists actions in the environment's order")
    if reflector and not reflector.sampling.greedy:
        departures.append("play.reflection_temperature is not 0: the page writes the likeliest reflections")
    return departures


def describe(policy: Policy, reflector: Reflector | None, world: World, about: Mapping[str, str]) -> dict[str, Any]:
    """Describe the players for the page: prompts in pieces, labels, sizes."""
    most = max(len(observation.actions) for observation in world.observations)
    labels, tokenizer = policy.labels(most), policy.lm.tokenizer
    models = {"policy": policy.lm, **({"reflector": reflector.lm} if reflector else {})}
    reflection = REFLECTION if reflector else None
    act = policy_prompt(Observation("", STATE, (ACTION,)), reflection, (LABEL,)).rest.replace(
        f"{LABEL}: {ACTION}", ACTION
    )
    sample = range(0, len(world.observations), -(-len(world.observations) // CHECKED))
    return {
        "about": dict(about),
        "prompts": {"reflect": reflector_prompt(Observation("", STATE, ())).rest, "act": act},
        "marks": {"state": STATE, "reflection": REFLECTION, "actions": ACTION},
        "labels": {"texts": labels.texts, "ids": labels.token_ids, "gap": labels.gap},
        "beginning": beginning(tokenizer),
        "eos": tokenizer.eos_token_id,
        "reflection_tokens": reflector.max_new_tokens if reflector else 0,
        "models": {name: {"context": lm.context, "cache": shape_of_cache(lm)} for name, lm in models.items()},
        "checks": [[index, policy.lm.encode(world.observations[index].text)] for index in sample],
    }


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _notice() -> str:
    versions = ", ".join(f"{name} {version}" for name, version in PACKAGES.items())
    return files("reflectrl.tools.browser").joinpath("page", "NOTICE.txt").read_text(encoding="utf-8").format(versions)
