"""Upload of an exported agent to a model hub, with a model card. Used by `--push` only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.core.config import Recipe, to_toml
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.runs.card import Card, read_card
from reflectrl.tools.pretrained.catalogue import CATALOGUE

COLUMNS = ("split", "stage", "sampling", "episodes", "success", "low", "high", "return", "steps")
"""Columns of the card's table of results. `low` and `high` bound the interval of the success rate."""


@dataclass(frozen=True)
class Publication:
    """Settings of an upload.

    Attributes:
        name: name of the repository, "owner/name".
        licence: identifier of the licence under which it is published, as hubs know them ("apache-2.0").
        public: True if everybody may see it.
    """

    name: str
    licence: str
    public: bool = False


def check_publication(wanted: Publication) -> None:
    """Refuse, before anything is written, settings that a hub would refuse.

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
    if not wanted.licence:
        raise UserError("--push needs --licence, the licence to publish under, such as apache-2.0")
    if constants.is_offline_mode():
        raise UserError("--push needs a network, and HF_HUB_OFFLINE is set")


def push(folder: Path, recipe: Recipe, taught: int, wanted: Publication) -> str:
    """Write an agent's model card into its folder, and upload the folder to the hub.

    The hub is `HF_ENDPOINT`, and the token comes from `hf auth login` or `HF_TOKEN`.

    Args:
        recipe: the recipe of the run that trained it.
        taught: number of teaching episodes.

    Returns:
        The address of the repository.

    Raises:
        UserError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    text = model_card(read_card(folder), recipe, taught, wanted.licence)
    (folder / "README.md").write_text(text, encoding="utf-8")
    try:
        api = HfApi()
        repository = api.create_repo(wanted.name, private=not wanted.public, exist_ok=True)
        api.upload_folder(repo_id=wanted.name, folder_path=folder, commit_message="An agent trained with reflectrl")
    except Exception as error:  # of many kinds: connections, tokens, rights, the hub's own
        raise UserError(f"{folder} is written, but could not be pushed: {one_line(error)[:200]}") from error
    return str(repository)


def model_card(card: Card, recipe: Recipe, taught: int, licence: str) -> str:
    """Return the README of an agent: its description, results with intervals, data, recipe and licence."""
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
        "## Results",
        _table(card.figures) or "It was not evaluated.",
        f"`low` and `high` bound the {recipe.eval.confidence:.0%} interval of the success rate.",
        "## Data",
        _data(recipe, taught),
        "## Recipe",
        f"```toml\n{to_toml(_without_paths(recipe))}```",
        "## Licence",
        f"Published under `{licence}`. {_ancestry(recipe)}".strip(),
    ]
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


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of results as a Markdown table."""
    if not rows:
        return ""
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
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
