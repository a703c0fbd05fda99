"""The agent that the command line answers with: which one, and how it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.locate.agent import Agent

SMALL = 20_000_000
"""Models of at most so many weights play on one thread: further ones gain nothing, and on a busy machine each small
product waits for them."""


def agent_of(model: str, search: bool) -> Agent | None:
    """The agent of a folder, else the one that is named in the environment or ships; None to answer by search.

    Args:
        model: its folder; "" if none was named.
        search: whether the search is to answer in any case.

    Raises:
        UserError: both were asked for, or the folder holds no agent.
    """
    if search:
        if model:
            raise UserError("--model names an agent, and the other options leave the answer to search; drop either")
        return None
    from reflectrl.wings.autoexplore.locate.card import agent_folder, read_card

    folder = agent_folder(model)
    if folder is None:
        return None
    read_card(folder)  # what is wrong with it is said before torch is imported
    import torch

    from reflectrl.wings.autoexplore.locate.agent import Agent

    agent = Agent.load(folder)
    if agent.weights <= SMALL:
        torch.set_num_threads(1)
    return agent
