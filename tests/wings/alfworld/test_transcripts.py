"""The native engine says, lists and decides what the reference engine did when `transcripts.jsonl.gz` was written.

`benchmarks/alfworld_transcripts.py` of commit bc64836 wrote that file; it holds generated games only.
"""

import gzip
import json
from pathlib import Path

import pytest

from reflectrl.wings.alfworld.game import TYPES
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.reading import compile_game

FILE = Path(__file__).with_name("transcripts.jsonl.gz")
TRANSCRIPTS = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).decode().splitlines()]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript["id"].split("/")[0])
def test_every_word_command_and_win_is_as_recorded(transcript):
    game = compile_game(transcript["id"], transcript["problem"], transcript["trajectory"])
    for walk in transcript["walks"]:
        house = House(game)
        assert house.introduction(game.description) == walk["introduction"]
        assert list(house.admissible()) == walk["commands"]
        for number, (command, said, commands, won) in enumerate(walk["steps"]):
            assert (number, command, house.do(command)) == (number, command, said)
            assert list(house.admissible()) == commands
            assert house.is_won() == won


def test_the_transcripts_show_every_type_every_verb_and_the_rarer_sights():
    assert {transcript["trajectory"]["task_type"] for transcript in TRANSCRIPTS} == set(TYPES)
    walks = [walk for transcript in TRANSCRIPTS for walk in transcript["walks"]]
    steps = [step for walk in walks for step in walk["steps"]]
    done = {command.split()[0] for command, said, _, _ in steps if said != "Nothing happens." and command}
    verbs = "look inventory help go open close take move use heat cool clean slice examine"
    assert set(verbs.split()) <= done
    said = " ".join(said for _, said, _, _ in steps)
    for sight in ("Nothing happens.", "is closed", "is open. In it", "nothing special"):
        assert sight in said, sight
    assert all(any(won for *_, won in walk["steps"]) for walk in walks)
