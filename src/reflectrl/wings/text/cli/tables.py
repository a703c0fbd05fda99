"""`judge`: compare the completions of two models of a text task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from reflectrl.core.config.folders import refuse_links
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.serving.endpoints.journal import Cost
    from reflectrl.wings.text.samples import Sample

RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Judge:
    """Let a judge model behind an OpenAI-compatible API compare the answers of two arms, each pair in both orders."""

    run: RunPath
    """Run folder of a text task."""
    url: Annotated[str, tyro.conf.arg(metavar="URL")]
    """Base URL of the API, such as http://127.0.0.1:8000/v1, or Azure's resource. Prompts and completions are sent
    there."""
    model: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """Name of the judge model on the server. For Azure, the deployment's name."""
    api: Annotated[Literal["openai", "azure"], tyro.conf.arg(metavar="API")] = "openai"
    """openai for OpenAI and all servers compatible with it, or azure."""
    api_version: Annotated[str, tyro.conf.arg(metavar="VERSION")] = ""
    """For --api azure: version of Azure's API, such as 2024-10-21."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = "a_lol"
    """Arm whose wins are counted."""
    against: Annotated[str, tyro.conf.arg(metavar="ARM")] = "nll"
    """The other arm, or "data" for the completions of the data."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Training seed of both arms."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "test"
    """Split from which the prompts come."""
    criteria: Annotated[str, tyro.conf.arg(metavar="ADJECTIVES")] = ""
    """Adjectives with commas between them, such as helpful,safe: the judge gives a verdict on each, in one answer, and
    the wins are counted for each. Default: one verdict on everything."""
    sampling: Annotated[str, tyro.conf.arg(metavar="HOW")] = "greedy"
    """Sampling of the completions: greedy or sampled."""
    prompts: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of prompts, from the first on; 0 means all."""
    threads: Annotated[int, tyro.conf.arg(metavar="N")] = 4
    """Number of concurrent requests."""
    max_tokens: Annotated[int, tyro.conf.arg(metavar="N")] = 16
    """Longest answer of the judge in tokens, per criterion. A judge that reasons before it answers needs more."""
    key_env: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """Environment variable with the server's API key, if it needs one."""
    max_requests: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Largest number of requests for this run, including retries and earlier requests; 0 sets no limit."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Ask the questions that have no verdict yet, and print the win rate by each criterion."""
        _refuse(settings)
        from reflectrl.serving.endpoints.answers import counted
        from reflectrl.serving.endpoints.client import Endpoint
        from reflectrl.serving.endpoints.config import EndpointConfig
        from reflectrl.serving.endpoints.journal import Budget, Journal
        from reflectrl.wings.text.generation.judge import OVERALL, judge

        if self.threads < 1 or self.max_tokens < 1 or self.max_requests < 0:
            raise UserError("judge: --threads and --max-tokens must be at least 1, --max-requests at least 0")
        if (self.api == "azure") != bool(self.api_version):
            raise UserError("judge: --api azure and --api-version VERSION go together")
        refuse_links(self.run)  # verdicts are written there
        config = EndpointConfig(
            self.url, self.model, self.key_env, self.api, self.api_version, concurrency=self.threads
        )
        journal = Journal(self.run / "judge" / "journal.jsonl", Budget(requests=self.max_requests))
        endpoint = Endpoint(config, journal)
        ours, theirs = ({s.group: s for s in self._written(arm)} for arm in (self.arm, self.against))
        common = [group for group in ours if group in theirs]
        judged = [group for group in common if not ours[group].meta.get("unjudged")]
        groups = judged[: self.prompts or None]
        if not groups:
            raise UserError(f"judge: {self.arm} and {self.against} have answered no prompt in common")
        if unpaired := len(ours.keys() | theirs.keys()) - len(common):
            print(f"{unpaired} prompts were answered by one of the arms alone, and are left out")
        if published := len(common) - len(judged):
            print(f"{published} prompts are not judged, as in the published comparison")
        path = self.run / "judge" / f"{self.arm}-{self.against}-seed{self.seed}-{self.split}-{self.sampling}.jsonl"
        criteria = [word.strip() for word in self.criteria.split(",")] if self.criteria else []
        wins_by_criterion = judge(
            [ours[group] for group in groups],
            [theirs[group] for group in groups],
            endpoint,
            path,
            self.threads,
            self.max_tokens * max(1, len(criteria)),
            begin=self._tell,
            criteria=criteria,
        )
        for line in {counted(endpoint.endings)} - {""}:
            print(line)
        few = []
        for name, wins in wins_by_criterion.items():
            row = {"arm": self.arm, "against": self.against, "judge": self.model, **asdict(wins)}
            sentence = f"{self.arm} wins {wins.rate:.1%}"
            if name != OVERALL:
                row["criterion"] = name
                sentence = f"{name}: {sentence}"
            low, high = wins.interval(0.95) or (0.0, 1.0)
            print(json.dumps(row))
            if wins.too_few:
                few.append(f"{wins.unclear} of {2 * len(groups)} verdicts{'' if name == OVERALL else f' ({name})'}")
                continue
            unclear = f"; {wins.unclear} of {2 * len(groups)} verdicts cannot be read" if wins.unclear else ""
            unread = f", which leaves {wins.unread} prompts out" if wins.unread else ""
            print(f"{sentence} [{low:.1%}, {high:.1%}] of {wins.compared} prompts, ties as half{unclear}{unread}")
        if few:
            raise UserError(
                f"judge: {', '.join(few)} cannot be read as A, B or TIE, so there is no win rate; raise --max-tokens"
                f" (now {self.max_tokens}), or name another judge; the answers are in {journal.path}"
            )

    def _tell(self, cost: Cost) -> None:
        if cost.requests:
            tokens = cost.tokens_in + cost.tokens_out
            print(f"{cost.requests} questions for {self.url}: about {tokens} tokens at most", flush=True)

    def _written(self, arm: str) -> list[Sample]:
        """Return the completions of an arm's best checkpoint, or of the data."""
        from reflectrl.wings.text.generation.generate import one_per_prompt, read_completions
        from reflectrl.wings.text.samples import read_samples

        if arm == "data":
            return one_per_prompt(read_samples(self.run / "data" / f"{self.split}.jsonl"))
        checkpoint = "only" if arm == "reference" else "best"
        path = self.run / "completions" / f"{arm}-seed{self.seed}-{checkpoint}-{self.split}-{self.sampling}.jsonl"
        completions = list(read_completions(path).values())
        if not completions:
            raise UserError(f"{path}: {arm} has not written anything there yet")
        return completions


def _refuse(settings: Sequence[str]) -> None:
    if settings:
        raise UserError(f"unknown option {settings[0].partition('=')[0]!r} (--help lists the options)")
