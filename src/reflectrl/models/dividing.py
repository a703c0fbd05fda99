"""Sharding a model's weights across the ranks when it is loaded (`sharded.py` explains how it is used)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from reflectrl.core import distributed
from reflectrl.core.types import UserError
from reflectrl.models.known import prove_once
from reflectrl.models.lm import LanguageModel, Shortcuts
from reflectrl.models.sharded import Lockstep


def divide(lm: LanguageModel, source: str, device: torch.device) -> LanguageModel:
    """Shard a model across the ranks, each shard on its rank's device.

    The first rank checks the model's shortcuts (`proof.py`) before, while it still has the full weights.

    Args:
        lm: the full model, in the machine's memory.
        source: folder or name from which it was loaded.

    Raises:
        UserError: only the first rank makes this artifact, or the model's layers cannot be gathered one by one.
    """
    if (team := distributed.team) is None:
        about = "model.shard: only the first process makes this artifact, and would have to hold the whole model"
        raise UserError(f"{about}; leave its arm out, or set model.shard = false")
    core: Any = lm.core

    def proved() -> tuple[Shortcuts, str]:
        found = prove_once(replace(lm, shortcuts=Shortcuts(packed=False)), source)
        return found.shortcuts, str(core.config._attn_implementation)

    shortcuts, attention = distributed.first(proved)
    core.set_attn_implementation(attention)
    team.lockstep = steps = team.lockstep if isinstance(team.lockstep, Lockstep) else Lockstep(team)
    return replace(lm, shortcuts=shortcuts, shards=steps.divide(core, device))
