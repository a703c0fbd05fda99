"""Exported agents of pretrained models: merged into ordinary folders, and put on a hub that stands on this machine."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from reflectrl.cli import main
from reflectrl.core.config import Recipe, from_dict
from reflectrl.models.load import load_model
from reflectrl.runs.card import Card, read_card
from reflectrl.runs.players import load_players
from reflectrl.runs.runner import run_recipe
from reflectrl.tools.exporting.publishing import model_card
from tests.tools.pretrained.test_arms import SMALL

IDS = (5, 9, 33, 7, 4)


@pytest.fixture(scope="module")
def ran(instruct: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two adapters, whose weights are made large enough to count."""
    model = {"source": str(instruct), "context": 2048, "lora_rank": 4}
    teach = {"noise": [0.0], "negatives": 0}
    made = from_dict(Recipe, {**SMALL, "teach": teach, "arms": ["sft"], "model": model}, "test")
    made = replace(made, sft=replace(made.sft, lr=0.05))
    folder = tmp_path_factory.mktemp("export") / "run"
    run_recipe(made, folder, "eval")
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(input_ids=torch.tensor([IDS])).logits[0]
    return found


def test_saved_adapters_give_the_same_logits_in_plain_peft(ran: Path, instruct: Path) -> None:
    policy, reflector = load_players(ran, "sft", 0)
    for player in (policy, reflector):
        lm = player.lm  # type: ignore[union-attr]
        with torch.inference_mode():
            found = lm.backend.logits(lm.backend.read([IDS], "all"))
        name = "policy" if player is policy else "reflector"
        plain = AutoModelForCausalLM.from_pretrained(instruct)
        alone = logits(plain)
        adapted = PeftModel.from_pretrained(plain, str(ran / "checkpoints" / "seed0" / name))
        torch.testing.assert_close(found, logits(adapted), atol=1e-5, rtol=0)
        assert float((logits(adapted) - alone).abs().max()) > 1e-3  # the adapter counts


def test_a_merged_agent_is_two_ordinary_models_that_play_alike(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "agent"
    assert main(["export-agent", str(ran), "--arm", "sft", "--out", str(out), "--merge"]) == 0
    assert "MiB of weights" in capsys.readouterr().out
    players = load_players(ran, "sft", 0)
    again = load_players(out, "sft", 0)
    for name, player, exported in zip(("policy", "reflector"), players, again, strict=True):
        assert not (out / name / "adapter_config.json").exists()
        wanted = logits(player.lm.model if player.lm.activate() is None else None)  # type: ignore[union-attr]
        torch.testing.assert_close(
            logits(AutoModelForCausalLM.from_pretrained(out / name)), wanted, atol=1e-4, rtol=1e-4
        )
        assert exported.lm.adapter is None and exported.lm.chat == player.lm.chat  # type: ignore[union-attr]
    assert "adapter_config.json" in {path.name for path in (ran / "checkpoints/seed0/policy").iterdir()}, "untouched"


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as an upload speaks to."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer({"id": "me/agent", "siblings": [], "sha": "0" * 40})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked: list[tuple[str, bytes]] = self.server.asked  # type: ignore[attr-defined]
        asked.append((self.path, body))
        here = f"http://127.0.0.1:{self.server.server_address[1]}"
        if self.path.endswith("/repos/create"):
            self.answer({"url": f"{here}/me/agent", "name": "me/agent", "id": "me/agent"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            told = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None} for one in files]
            self.answer({"files": told})
        elif "/commit/" in self.path:
            oid = "1" * 40
            self.answer({"success": True, "commitOid": oid, "commitUrl": f"{here}/me/agent/commit/{oid}"})
        else:
            self.answer({"errors": [], "warnings": []})

    def answer(self, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """What a hub on this machine was asked, in order."""
    from huggingface_hub import constants, hf_api

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []  # type: ignore[attr-defined]
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)  # as HF_ENDPOINT does in a new process
    monkeypatch.setattr(hf_api.api, "endpoint", address)
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    Thread(target=server.serve_forever, daemon=True).start()
    yield server.asked  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def push(ran: Path, out: Path, *more: str) -> int:
    return main(["export-agent", str(ran), "--arm", "sft", "--out", str(out), "--push", "me/agent", *more])


def test_pushing_puts_the_folder_with_a_model_card_on_the_hub(
    ran: Path, tmp_path: Path, hub: list[tuple[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(ran, tmp_path / "agent", "--licence", "apache-2.0", "--merge") == 0, capsys.readouterr().err
    assert "pushed to me/agent (private)" in capsys.readouterr().out
    created = json.loads(next(body for path, body in hub if path.endswith("/repos/create")))
    assert created.get("private") or created.get("visibility") == "private"
    commit = next(body for path, body in hub if "/commit/" in path)
    sent = {
        line["value"]["path"]: line["value"] for line in map(json.loads, commit.splitlines()) if line["key"] == "file"
    }
    assert {"README.md", "agent.json", "policy/model.safetensors", "recipe.toml"} <= sent.keys()
    card = base64.b64decode(sent["README.md"]["content"]).decode()
    for row in read_card(tmp_path / "agent").figures:
        assert f"{row['success']:.3f} | {row['low']:.3f} | {row['high']:.3f}" in card
    assert 'license: "apache-2.0"' in card and "3 teaching episodes by the environment's own teacher" in card
    assert "[sft]" in card and "It was trained from a model in a local folder" in card
    read = [base64.b64decode(one["content"]) for one in sent.values() if one.get("content")]
    assert len(read) > 5 and not [text for text in read if str(ran.parent.parent).encode() in text], "no paths of ours"


@pytest.mark.parametrize(
    ("source", "named", "licence"),
    [
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "(Apache-2.0)"),
        ("someone/model", "someone/model", "the licence of that model"),
        ("./folder", "", "the licence of that model"),
        ("model.gguf", "", "the licence of that model"),
        ("scratch", "", ""),
    ],
)
def test_a_model_card_names_what_the_agent_was_trained_from(source: str, named: str, licence: str) -> None:
    made = from_dict(Recipe, {"name": "r", "env": {"name": "corridor"}, "model": {"source": source}}, "test")
    text = model_card(Card("r"), made, 0, "mit")
    assert (f'base_model: ["{named}"]' in text) == bool(named) and ("base_model" in text) == bool(named)
    assert licence in text and ("It was trained from" in text) == (source != "scratch")
    assert (f'source = "{source}"' in text) == (bool(named) or source == "scratch"), "folders are left out"


def test_a_model_card_has_the_results_over_all_seeds() -> None:
    made = from_dict(Recipe, {"name": "r", "env": {"name": "corridor"}, "seeds": [0, 1, 7]}, "test")
    row = {"split": "test", "stage": "full", "sampling": "greedy", "seeds": 3, "episodes": 630}
    summary = [{**row, "success": 0.98, "low": 0.9512, "high": 1.0, "return": 1.25, "steps": 13.0}]
    text = model_card(Card("r"), made, 0, "mit", summary, {"policy/model.safetensors": (1024, "ab" * 32)})
    assert "Over the seeds 0, 1, 7 of the run:" in text
    assert "| test | full | greedy | 3 | 630 | 0.980 | 0.951 | 1.000 | 1.250 | 13.000 |" in text
    assert f"| policy/model.safetensors | 1024 | {'ab' * 32} |" in text


def test_adapters_on_a_folder_of_this_machine_are_not_published(
    ran: Path, tmp_path: Path, hub: list[tuple[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(ran, tmp_path / "agent", "--licence", "mit") == 2
    assert "which only this machine has; add --merge to publish it" in capsys.readouterr().err
    assert not hub and not (tmp_path / "agent").exists()


def test_what_a_hub_would_refuse_is_refused_before_anything_is_written(
    ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    out = tmp_path / "agent"
    assert push(ran, out) == 2
    assert "--push needs --licence" in capsys.readouterr().err
    assert main(["export-agent", str(ran), "--arm", "sft", "--out", str(out), "--push", "a b", "--licence", "mit"]) == 2
    assert "--push 'a b': " in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert push(ran, out, "--licence", "mit") == 2
    assert "--push needs a network, and HF_HUB_OFFLINE is set" in capsys.readouterr().err
    assert not out.exists()


def test_a_hub_that_cannot_be_reached_costs_nothing_but_the_push(
    ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants, hf_api

    for where, name in ((constants, "ENDPOINT"), (hf_api.api, "endpoint")):
        monkeypatch.setattr(where, name, "http://127.0.0.1:9")  # nobody listens there
    assert push(ran, tmp_path / "agent", "--licence", "mit", "--merge") == 2
    said = capsys.readouterr().err
    assert "is written, but could not be pushed: " in said and "Traceback" not in said
    assert load_model(tmp_path / "agent" / "policy", Recipe().model).adapter is None
