"""Model card of an exported agent, and the agent's upload to a model hub, which `--push` alone asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.core.config import Recipe, to_toml
from reflectrl.core.digests import digest_of
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.runs.card import Card
from reflectrl.tools.pretrained.catalogue import CATALOGUE

COLUMNS = ("split", "stage", "sampling", "episodes", "success", "low", "high", "return", "steps")
"""Columns of the card's table of results. `low` and `high` bound the interval of the success rate."""
SUMMARY = ("split", "stage", "sampling", "seeds", *COLUMNS[3:])
"""Columns of the card's table of results over all seeds."""
MODEL_CARD = "README.md"
"""File of the model card in an agent's folder, under the name that hubs show."""


@dataclass(frozen=True)
class Publication:
    """Settings of an upload.

    Attributes:
        name: name of the repository, "owner/name".
        public: True if everybody may see it.
    """

    name: str
    public: bool = False


def check_publication(wanted: Publication, licence: str) -> None:
    """Refuse, before anything is written, settings that a hub would refuse.

    Args:
        licence: identifier of the licence under which it is published, as hubs know them ("apache-2.0").

    Raises:
        UserError: the name is not valid, there is no licence, or this process is told to stay offline.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(wanted.name)
    except HFValidationError as error:
        raise UserError(f"--push {wanted.name!r}: {one_line(error)}") from error
    if wanted.name.count("/") != 1:
        raise UserError(f"--push {wanted.name!r}: the name of a repository is OWNER/NAME")
    if not licence:
        raise UserError("--push needs --licence, the licence to publish under, such as apache-2.0")
    if constants.is_offline_mode():
        raise UserError("--push needs a network, and HF_HUB_OFFLINE is set")


def push(folder: Path, wanted: Publication) -> str:
    """Upload an agent's folder to the hub, with its model card.

    The hub is `HF_ENDPOINT`, and the token comes from `hf auth login` or `HF_TOKEN`.

    Returns:
        The address of the repository.

    Raises:
        UserError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        repository = api.create_repo(wanted.name, private=not wanted.public, exist_ok=True)
        api.upload_folder(repo_id=wanted.name, folder_path=folder, commit_message="An agent trained with reflectrl")
    except Exception as error:  # of many kinds: connections, tokens, rights, the hub's own
        raise UserError(f"{folder} is written, but could not be pushed: {one_line(error)[:200]}") from error
    return str(repository)


def weights_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return path → size in bytes and SHA-256 of each file of weights in an agent's folder, sorted by path."""
    weights: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        weights[path.relative_to(folder).as_posix()] = path.stat().st_size, digest_of(path)
    return weights


def model_card(
    card: Card,
    recipe: Recipe,
    taught: int,
    licence: str,
    summary: Sequence[Mapping[str, Any]] = (),
    weights: Mapping[str, tuple[int, str]] | None = None,
) -> str:
    """Return the README of an agent.

    Args:
        card: card of the agent, with its results.
        recipe: recipe of the run that trained it.
        taught: number of teaching episodes.
        licence: identifier of the licence under which it is published.
        summary: rows of the run's results over all seeds.
        weights: files of weights, from `weights_of`.
    """
    sources = [name for source in recipe.model.sources if (name := hub_name(source))]
    about = {"license": licence, "library_name": "reflectrl", "tags": ["reflectrl", "reinforcement-learning", "agent"]}
    about |= {"base_model": sources} if sources else {}
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in about.items())
    parts = [
        f"---\n{front}\n---",
        f"# {card.name}",
        f"An agent for the environment `{card.environment}`: the players of the arm `{card.arm}`, trained with"
        f" reflectrl (seed {card.seed}{f', commit {card.commit}' if card.commit else ''}).",
        "```bash\n" + f"reflectrl play {card.environment} --player FOLDER\n" + "```",
        "## Intended use",
        f"To play `{card.environment}`, and as a baseline for other agents of this environment. It picks one of the"
        " listed actions; it does not chat.",
        "## Results",
        _table(COLUMNS, card.figures) or "It was not evaluated.",
    ]
    if summary and len(recipe.seeds) > 1:
        parts += [f"Over the seeds {', '.join(map(str, recipe.seeds))} of the run:", _table(SUMMARY, summary)]
    parts += [
        f"`low` and `high` bound the {recipe.eval.confidence:.0%} interval of the success rate.",
        "## Limits",
        "The results hold for tasks of this environment, with the settings of the recipe; nothing was measured on"
        " others. Another seed may do better or worse. A reflection is written for the policy to read; it can be wrong"
        " even where the action is right.",
        "## Data",
        _data(recipe, taught),
        "## Recipe",
        f"```toml\n{to_toml(_without_paths(recipe))}```",
    ]
    if weights:
        rows = [{"file": path, "bytes": size, "SHA-256": digest} for path, (size, digest) in weights.items()]
        parts += ["## Weights", _table(("file", "bytes", "SHA-256"), rows)]
    parts += ["## Licence", f"Published under `{licence}`. {_ancestry(recipe)}".strip()]
    return "\n\n".join(parts) + "\n"


def hub_name(source: str) -> str:
    """Return a hub's name of the model in `model.source`; "" for a model from scratch, a folder or a file."""
    if source in CATALOGUE:
        return CATALOGUE[source].hub_name
    return source if source.count("/") == 1 and not (_is_path(source) or Path(source).exists()) else ""


def _ancestry(recipe: Recipe) -> str:
    """Describe the licences of the models from which the agent was trained."""
    sentences = []
    for source in recipe.model.sources:
        if source in CATALOGUE:
            sentences.append(
                f"It was trained from {hub_name(source)}, whose licence ({CATALOGUE[source].licence}) holds too."
            )
        elif source != "scratch":
            name = hub_name(source) or "a model in a local folder, which is not named here"
            sentences.append(f"It was trained from {name}; the licence of that model holds too.")
    return " ".join(sentences)


def _table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table of those columns that a row has; "" without rows."""
    if not rows:
        return ""
    columns = [name for name in names if any(name in row for row in rows)]
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        lines.append([_cell(row.get(name)) for name in columns])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _data(recipe: Recipe, taught: int) -> str:
    """Describe the source of the training's episodes."""
    teacher = {"teacher": "the environment's own teacher", "log": "recorded demonstrations", "endpoint": "a model"}
    origin = f"{taught} teaching episodes by {teacher[recipe.teach.by]}" if taught else "No teaching episodes"
    return (
        f"{origin}, in the environment `{recipe.env['name']}`; the episodes themselves are not part of this repository."
    )


def _without_paths(recipe: Recipe) -> Recipe:
    """Return the recipe without paths that exist only on the machine that ran it."""
    env = {key: value for key, value in recipe.env.items() if not _is_path(value)}
    keys = ("source", "policy", "reflector")
    model: dict[str, Any] = {key: value if hub_name(value := getattr(recipe.model, key)) else "" for key in keys}
    model["source"] = model["source"] or "scratch"
    plain = Recipe()
    sections = {  # addresses of endpoints are left out, as in an exported agent
        name: plain.sections[name] if getattr(section, "not_exported", False) else section
        for name, section in recipe.sections.items()
    }
    teach = replace(recipe.teach, log=())
    return replace(recipe, env=env, model=replace(recipe.model, **model), teach=teach, sections=sections)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (Path(value).is_absolute() or value.startswith((".", "~")))
