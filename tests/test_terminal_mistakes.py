"""In a terminal, where libraries write colours, each mistake on the command line is answered with one plain line."""

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

MOST_CHARACTERS = 500
PROGRAM = """
import dataclasses, json, sys, typing
from reflectrl.cli import main
from reflectrl.cli.verbs import Verbs

def words(kind):
    fields = dataclasses.fields(kind)
    missing = [field for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    if missing:
        yield []
    yield ["--no-such-option", "1"]
    hints = typing.get_type_hints(kind)
    for field in fields:
        option = "--" + field.name.rstrip("_").replace("_", "-")
        if hints[field.name] in (int, float) and field not in missing:
            yield [*["x"] * len(missing), option, "many"]
        if hints[field.name] in (int, float, str) and field not in missing:
            yield [*["x"] * len(missing), option]
        if len(option) > 6:
            yield [*["x"] * len(missing), option[:4] + option[5:], "1"]

cases = [(verb, given) for verb, kind in Verbs().items() if verb != "data" for given in words(kind)]
cases += [("serv", []), ("", []), ("data", []), ("data", ["alfwrold"]), ("data", ["convert"])]
cases += [("data", ["convert", "--form"]), ("run", ["taxi", "--rl.algorithm", "poo"]), ("report", ["runs/nope"])]
cases += [("run", ["taxi", "--rl.leraning-rate", "1"]), ("run", ["txai"]), ("run", ["taxi", "--seeds", "many"])]
for verb, given in cases:
    print("\\n@@" + json.dumps([verb, given]), flush=True)
    status = main([verb, *given])
    print("\\n@@" + json.dumps(status), flush=True)
"""


def in_a_terminal(folder: Path) -> str:
    """Run the program with a terminal as its input and outputs, and return what the terminal shows."""
    master, slave = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                shown.extend(data)
        except OSError:  # the other end was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    env = os.environ | {"TERM": "xterm-256color", "FORCE_COLOR": "1", "HOME": str(folder), "REFLECTRL_CACHE": "off"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env
    ) as process:
        os.close(slave)
        status = process.wait(timeout=300)
    reader.join()
    os.close(master)
    assert status == 0, shown.decode(errors="replace")[-2000:]
    return shown.decode()


def test_each_mistake_of_each_verb_is_answered_with_one_plain_line(tmp_path: Path) -> None:
    _, *blocks = in_a_terminal(tmp_path).replace("\r\n", "\n").split("\n@@")
    answers: dict[str, str] = {}
    for case, status in zip(blocks[::2], blocks[1::2], strict=True):
        words, _, answer = case.partition("\n")
        verb, given = json.loads(words)
        name = " ".join([verb, *given])
        answers[name] = answer.strip()
        assert int(status) == 2, f"{name}: {answer}"
        assert answer.startswith("reflectrl: ") and answer.strip().count("\n") == 0, f"{name}: {answer}"
        assert answer.strip().isprintable() and "\\x1b" not in answer and len(answer) < MOST_CHARACTERS, (
            f"{name}: {answer}"
        )
    assert len(answers) > 100
    assert "RUN|AGENT" in answers["serve"]
    assert "did you mean 'ppo'" in answers["run taxi --rl.algorithm poo"]
    assert "did you mean 'lr'" in answers["run taxi --rl.leraning-rate 1"]
    assert "no file or folder runs/nope" in answers["report runs/nope"]
    assert "did you mean 'taxi'" in answers["run txai"]
