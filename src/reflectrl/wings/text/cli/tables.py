"""`judge`: what models of text tasks have written, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from reflectrl.config.folders import refuse_links
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.endpoints.journal import Cost
    from reflectrl.wings.text.samples import Sample

RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Judge:
    """Ask a model behind an OpenAI-compatible address which of two arms answers better; every pair in both orders."""

    run: RunPath
    """Run folder of a text task."""
    url: Annotated[str, tyro.conf.arg(metavar="URL")]
    """Where the API begins, such as http://127.0.0.1:8000/v1. Prompts and completions are sent there."""
    model: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """The server's name of the judge."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = "a_lol"
    """Whose wins are counted."""
    against: Annotated[str, tyro.conf.arg(metavar="ARM")] = "nll"
    """The other arm, or data: the completions of the data."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of training of both."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "test"
    """Which prompts."""
    sampling: Annotated[str, tyro.conf.arg(metavar="HOW")] = "greedy"
    """greedy or sampled."""
    prompts: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """The first N prompts; 0 means all."""
    threads: Annotated[int, tyro.conf.arg(metavar="N")] = 4
    """Questions under way at a time."""
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Longest answer; more for a judge that thinks aloud."""
    key_env: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """The environment variable that holds the server's key, if it asks for one."""
    max_requests: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Budget: most requests about this run, retries and earlier ones included; 0 sets no limit."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Ask what has not been asked yet, and print the win rate."""
        _refuse(settings)
        from reflectrl.endpoints.client import Endpoint
        from reflectrl.endpoints.config import EndpointConfig
        from reflectrl.endpoints.journal import Budget, Journal
        from reflectrl.wings.text.generation.judge import judge

        if self.threads < 1 or self.max_tokens < 1 or self.max_requests < 0:
            raise UserError("judge: --threads and --max-tokens must be at least 1, --max-requests at least 0")
        refuse_links(self.run)  # verdicts are written there
        config = EndpointConfig(self.url, self.model, self.key_env, concurrency=self.threads)
        journal = Journal(self.run / "judge" / "journal.jsonl", Budget(requests=self.max_requests))
        endpoint = Endpoint(config, journal)
        ours, theirs = ({s.group: s for s in self._written(arm)} for arm in (self.arm, self.against))
        shared = [group for group in ours if group in theirs][: self.prompts or None]
        if not shared:
            raise UserError(f"judge: {self.arm} and {self.against} have answered no prompt in common")
        path = self.run / "judge" / f"{self.arm}-{self.against}-seed{self.seed}-{self.split}-{self.sampling}.jsonl"
        wins = judge(
            [ours[group] for group in shared],
            [theirs[group] for group in shared],
            endpoint,
            path,
            self.threads,
            self.max_tokens,
            begin=self._tell,
        )
        low, high = wins.interval(0.95) or (0.0, 1.0)
        print(json.dumps({"arm": self.arm, "against": self.against, "judge": self.model, **asdict(wins)}))
        print(f"{self.arm} wins {wins.rate:.1%} [{low:.1%}, {high:.1%}] of {len(shared)} prompts, ties as half")

    def _tell(self, cost: Cost) -> None:
        if cost.requests:
            tokens = cost.tokens_in + cost.tokens_out
            print(f"{cost.requests} questions for {self.url}: about {tokens} tokens at most", flush=True)

    def _written(self, arm: str) -> list[Sample]:
        """What an arm's best checkpoint has written, or the completions of the data."""
        from reflectrl.wings.text.generation.generate import one_per_prompt, read_completions
        from reflectrl.wings.text.samples import read_samples

        if arm == "data":
            return one_per_prompt(read_samples(self.run / "data" / f"{self.split}.jsonl"))
        checkpoint = "only" if arm == "reference" else "best"
        path = self.run / "completions" / f"{arm}-seed{self.seed}-{checkpoint}-{self.split}-{self.sampling}.jsonl"
        found = list(read_completions(path).values())
        if not found:
            raise UserError(f"{path}: {arm} has not written anything there yet")
        return found


def _refuse(settings: Sequence[str]) -> None:
    if settings:
        raise UserError(f"unknown option {settings[0].partition('=')[0]!r} (--help says which there are)")
