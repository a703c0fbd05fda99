"""`data hha`, `comet`, `reddit`, `knowledge`: prepare text for offline learning. `data convert`: convert samples.
`data critic`: convert the critic that scores commonsense inferences.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, bar, refuse_unknown

if TYPE_CHECKING:
    from reflectrl.wings.text.samples.families import Account

ADVICE = " (--skip-bad leaves such rows out and counts them)"

Paths = Annotated[
    tuple[tuple[Path, ...], ...], tyro.conf.arg(name="from", metavar="DIR ..."), tyro.conf.UseAppendAction
]
Store = Annotated[str, tyro.conf.arg(metavar="DIR")]
Share = Annotated[float, tyro.conf.arg(metavar="SHARE")]
Number = Annotated[float | None, tyro.conf.arg(metavar="X")]


@dataclass(frozen=True)
class _Prepare(Data):
    """Options and behaviour that the four families share."""

    from_: Paths = ()
    """Raw files to read, or folders to search with all their subfolders. Without it, print what the store holds."""
    store: Store = ""
    """Folder for the samples. Default: $REFLECTRL_DATA/FAMILY or ~/.cache/reflectrl/FAMILY."""
    held_out: Share = 0.05
    """Share of the training data that is held out as the validation (or test) set if no file has that name."""
    skip_bad: bool = False
    """Leave bad rows out and count them, instead of refusing the file."""

    family: ClassVar[str]

    def __call__(self, settings: Sequence[str]) -> None:
        """Prepare the data if --from is given, then print what the store holds."""
        refuse_unknown(settings, type(self))
        from reflectrl.wings.text.samples import Gate
        from reflectrl.wings.text.samples.families import FAMILIES, prepare, read_account

        if () in self.from_:
            raise UserError("data: --from needs a folder or a file")
        store, paths = data_folder(self.family, self.store), [path for paths in self.from_ for path in paths]
        if paths:
            gate, family = Gate(self.skip_bad, ADVICE), FAMILIES[self.family]
            with bar("prepare") as progress:
                account = prepare(family, paths, store, gate, held_out=self.held_out, progress=progress, **self._more())
        else:
            stored_account = read_account(store, self.family)
            if stored_account is None:
                raise UserError(f"no {self.family} data in {store}; --from DIR prepares some (docs/offline-data.md)")
            account = stored_account
        _show(account, store)

    def _more(self) -> dict[str, Any]:
        """Return the options that only this family has."""
        common = {field.name for field in fields(_Prepare)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}


@dataclass(frozen=True)
class HHA(_Prepare):
    """Prepare dialogues of a helpful and harmless assistant: Anthropic/hh-rlhf, or rows with rewards based on it."""

    style: Literal["labelled", "guanaco"] = "labelled"
    """Format of prompts: turns labelled with their speakers, or the format of Guanaco and of the published adapters."""
    sigmoid: bool = False
    """Apply the sigmoid to the rewards in the files, which are a reward model's raw outputs."""

    family: ClassVar[str] = "hha"


@dataclass(frozen=True)
class Comet(_Prepare):
    """Prepare commonsense inferences: ATOMIC 2020 (.tsv) or ATOMIC-10x (.jsonl)."""

    style: Literal["words", "distill", "atomic2020"] = "words"
    """Format of prompts: words, or the format of COMET-distill or COMET-ATOMIC 2020."""

    family: ClassVar[str] = "comet"


@dataclass(frozen=True)
class Reddit(_Prepare):
    """Prepare upvoted and downvoted replies to comments, from CSV files of Reddit comments."""

    style: Literal["labelled", "dialogpt"] = "labelled"
    """Format of prompts: turns labelled with their speakers, or DialoGPT's format."""

    family: ClassVar[str] = "reddit"


@dataclass(frozen=True)
class Knowledge(_Prepare):
    """Prepare dialogues that are grounded in knowledge: Wizard of Wikipedia, FaithDial, or both together."""

    style: Literal["labelled", "dialogpt"] = "labelled"
    """Format of prompts: turns labelled with their speakers, or DialoGPT's format."""

    family: ClassVar[str] = "knowledge"


@dataclass(frozen=True)
class Convert(Data):
    """Check a file of samples in any supported form, including episode logs, and write it in another form."""

    from_: Annotated[Path, tyro.conf.arg(name="from", metavar="FILE")]
    """A file, or a folder of .jsonl files."""
    to: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Output file. Without it, the samples are only checked."""
    as_: Annotated[
        Literal["samples", "prompt-completion", "preference", "unpaired"], tyro.conf.arg(name="as", metavar="FORM")
    ] = "samples"
    """Output form: samples (our own form), or TRL's prompt-completion (SFT), preference (DPO) or unpaired (KTO)."""
    threshold: Number = None
    """Reward above which a completion of form "unpaired" is labelled desirable. Default: the mean reward."""
    missing_reward: Number = None
    """Reward of rows that have none. By default, such rows are refused."""
    gamma: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Discount factor of the reward-to-go in episode logs."""
    sigmoid: bool = False
    """Apply the sigmoid to the rewards, which are a reward model's raw outputs."""
    unit: bool = False
    """Map rewards to [0, 1], from the lowest to the highest in the file."""
    bounds: Annotated[tuple[float, float] | None, tyro.conf.arg(metavar="LOW HIGH")] = None
    """Map rewards to [0, 1] from these bounds, for example the bounds of the training data."""
    words: bool = False
    """Use the actions' texts as completions of episode logs, instead of choice labels."""
    skip_bad: bool = False
    """Leave bad rows out and count them, instead of refusing the file."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Read the samples, print a summary, and write them."""
        refuse_unknown(settings, type(self))
        from reflectrl.wings.text.samples import Reading, StepReading, read_samples, to_unit
        from reflectrl.wings.text.samples.sample import summary, through_sigmoid
        from reflectrl.wings.text.samples.writing import to_line, to_trl, write_lines

        reading = Reading(self.missing_reward, StepReading(self.gamma, words=self.words))
        samples = read_samples(self.from_, self.skip_bad, reading)
        if self.sigmoid:
            samples = replace(samples, items=tuple(map(through_sigmoid, samples)))
        if self.unit or self.bounds:
            samples = to_unit(samples, self.bounds)
            print("rewards {} and {} become 0 and 1".format(*samples[0].meta["bounds"]))
        print(*summary(samples), sep="\n")
        if self.to is not None:
            lines = map(to_line, samples)
            if self.as_ != "samples":
                rows = to_trl(samples, self.as_, self.threshold)
                lines = map(partial(json.dumps, ensure_ascii=False), rows)
            print(f"{self.to}: {write_lines(self.to, lines)} rows, {self.as_}")


@dataclass(frozen=True)
class Critic(Data):
    """Convert the published critic of ATOMIC-10x, a model of Keras, to a folder for rewards.comet_critic.model."""

    from_: Annotated[Path, tyro.conf.arg(name="from", metavar="PATH")]
    """Folder in which Keras saved the critic (with saved_model.pb), or HDF5 file of the model or of its weights."""
    to: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """New folder for the converted critic."""
    base: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "FacebookAI/roberta-large-mnli"
    """Folder or hub name of the RoBERTa that the critic was trained from. It gives the configuration and the tokenizer,
    and must be on this machine."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Convert the critic, and print how to use it."""
        refuse_unknown(settings, type(self))
        from reflectrl.runs.workers import silence
        from reflectrl.wings.text.rewards.keras_critic import convert

        silence()
        convert(self.from_, self.base, self.to)
        print(f"the critic is in {self.to}; to use it: --rewards.comet_critic.model {self.to}")


def _show(account: Account, store: Path) -> None:
    """Print a table of the files, and the rows and files that were left out."""
    print(store)
    print(f"{'':32}{'samples':>10}{'prompts':>10}{'also in train':>15}")
    for name, counts in account.files.items():
        print(f"  {name:30}{counts['samples']:10}{counts['prompts']:10}{counts['in_train']:15}")
    if account.rewards:
        low, high = account.rewards
        hint = "; are they a reward model's numbers? --sigmoid maps them to [0, 1]" if low < 0 or high > 1 else ""
        print(f"rewards: from {low:.6g} to {high:.6g}{hint if account.family == 'hha' else ''}")
    else:
        print("rewards: none yet (classifiers give them)")
    if account.ties:
        print(f"ties: {account.ties} records whose answers have the same reward (kept)")
    for heading, rows in (("left out", account.left_out), ("skipped", account.skipped)):
        for reason, skipped in rows.items():
            print(f"{heading}: {skipped['count']} rows, {reason} ({', '.join(skipped['first'])})")
    for name, why in account.set_aside.items():
        print(f"not read: {name}, since {why}")
    if account.unread:
        print(
            f"not read: {len(account.unread)} files whose names do not say what they are: {', '.join(account.unread)}"
        )
