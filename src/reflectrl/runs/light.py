"""Players of an exported agent in numpy, where its models allow that. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from reflectrl.core.players.base import Player
from reflectrl.models.light import LightPolicy, LightReflector, load_light
from reflectrl.runs.card import Card, PlaySettings
from reflectrl.runs.state import POLICY, REFLECTOR

SCORED = ("trie", "options", "enumeration")
"""Methods of scoring that need no torch."""


def light_players(folder: Path, card: Card) -> tuple[Player, Player | None] | None:
    """Load policy and reflector of an exported agent in numpy; return None if they need torch.

    Raises:
        UserError: a file is damaged, or weights and tokenizer do not belong together.
    """
    play: PlaySettings = card.play
    if play.scoring not in SCORED or play.shuffle_labels:
        return None
    policy = load_light(folder / POLICY, play.context)
    if policy is None or (play.scoring == "options" and policy.option_head_D is None):
        return None
    player = LightPolicy(policy, play.scoring, play.to_calibration())
    if not (folder / REFLECTOR).is_dir():
        return player, None
    reflector = load_light(folder / REFLECTOR, play.context)
    if reflector is None:
        return None
    return player, LightReflector(reflector, play.reflection_tokens, play.reflection == "carried")
