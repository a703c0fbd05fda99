"""Train small models on the best players' moves of the panel, with parts of the architecture changed one by one.

    python -m benchmarks.reading --games apothecary mailroom --models canon gpt2 --seconds 60 --seeds 0 1 2
    python -m benchmarks.reading --models canon --set rotary_share=0.5 --set canon_taps=6

The loss is over the listed actions: at each token of the best action, over the tokens that lead to a listed action (the
policy's `trie` scoring). Only a game's own training tasks are used, and games are won or lost on its validation tasks,
so that nothing is chosen on a test split. Time is processor time of training. One line of JSON a run goes to `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import reflectrl.models.canon  # noqa: F401  (registers the family)
from benchmarks.strangers import make, module_of
from reflectrl.core.prompts import words_prompt
from reflectrl.learn.optim import Muon
from reflectrl.models.scratch import train_tokenizer

EVERY = 50


class Move(NamedTuple):
    """A decision of the best player.

    Attributes:
        ids: tokens of the prompt and of the best action.
        allowed: (position, tokens that may follow there, index of the right one) for each choice along the best action.
    """

    ids: list[int]
    allowed: list[tuple[int, list[int], int]]


def text_of(observation: Any) -> str:
    """Return the prompt's text."""
    prompt = words_prompt(observation, None)
    return prompt.history + prompt.rest


def branches(options: Sequence[Sequence[int]], best: Sequence[int]) -> list[tuple[int, list[int], int]]:
    """Return the choices along the best option: (its token's index, allowed tokens, index of the best one)."""
    choices = []
    for depth in range(len(best)):
        alive = [option for option in options if list(option[:depth]) == list(best[:depth])]
        tokens = sorted({option[depth] for option in alive if len(option) > depth})
        if len(tokens) > 1:
            choices.append((depth, tokens, tokens.index(best[depth])))
    return choices


class Game:
    """The best player's moves in a game, in tokens."""

    def __init__(self, name: str, vocab: int) -> None:
        self.name, self.env, self.best = name, make(name), module_of(name).best
        played = {split: self._play(split) for split in ("train", "validation")}
        texts = [text_of(seen) + " " + action for seen, action in played["train"]]
        self.tokenizer = train_tokenizer(texts, vocab, same_words=True)
        self.moves = {split: [self.encode(seen, action) for seen, action in rows] for split, rows in played.items()}

    def _play(self, split: str) -> list[tuple[Any, str]]:
        rows = []
        for seed, task in enumerate(self.env.tasks(split)):
            _, info = self.env.reset(seed=seed, options={"task": task})
            while not self.env.done:
                action = self.best(self.env)
                rows.append((info["observation"], action))
                _, _, _, _, info = self.env.step(info["actions"].index(action))
        return rows

    def encode(self, seen: Any, action: str) -> Move:
        """Return a decision in tokens."""
        prompt = self.tokenizer.encode(text_of(seen))
        end = [self.tokenizer.eos_token_id]
        options = {name: [*self.tokenizer.encode(" " + name), *end] for name in seen.actions}
        choices = branches(list(options.values()), options[action])
        return Move(
            prompt + options[action], [(len(prompt) + depth - 1, tokens, best) for depth, tokens, best in choices]
        )

    @torch.no_grad()
    def won(self, model: Any) -> float:
        """Return the share of validation tasks won by the model's most probable actions."""
        model.eval()
        won, tasks = 0, self.env.tasks("validation")
        for seed, task in enumerate(tasks):
            _, info = self.env.reset(seed=seed, options={"task": task})
            while not self.env.done:
                _, _, _, _, info = self.env.step(self._choose(model, info["observation"]))
            won += self.env.success
        return won / len(tasks)

    def _choose(self, model: Any, seen: Any) -> int:
        prompt, end = self.tokenizer.encode(text_of(seen)), self.tokenizer.eos_token_id
        options = [[*self.tokenizer.encode(" " + name), end] for name in seen.actions]
        alive, written = list(range(len(options))), list[int]()
        while len(alive) > 1:
            tokens = sorted({options[i][len(written)] for i in alive})
            if len(tokens) > 1:
                logits_V = model(torch.tensor([prompt + written])).logits[0, -1]
                written.append(max(tokens, key=lambda token: float(logits_V[token])))
            else:
                written.append(tokens[0])
            alive = [i for i in alive if options[i][len(written) - 1] == written[-1]]
        return alive[0]


def listed_loss(model: Any, moves: Sequence[Move]) -> tuple[Tensor, float]:
    """Return the mean loss per decision over the listed actions, and the share of right decisions."""
    longest = max(len(move.ids) for move in moves)
    ids_BT = torch.zeros(len(moves), longest, dtype=torch.long)
    for row, move in enumerate(moves):
        ids_BT[row, : len(move.ids)] = torch.tensor(move.ids)
    logits_BTV = model(ids_BT).logits
    rows = [(row, *choice) for row, move in enumerate(moves) for choice in move.allowed]
    most = max(len(tokens) for *_, tokens, _ in rows)
    token_CA = torch.tensor([tokens + [0] * (most - len(tokens)) for *_, tokens, _ in rows])
    hidden_CA = torch.tensor([[False] * len(tokens) + [True] * (most - len(tokens)) for *_, tokens, _ in rows])
    row_C, at_C = torch.tensor([row for row, *_ in rows]), torch.tensor([at for _, at, *_ in rows])
    logits_CA = logits_BTV[row_C, at_C].gather(1, token_CA).masked_fill(hidden_CA, -torch.inf)
    best_C = torch.tensor([best for *_, best in rows])
    logp_C = logits_CA.log_softmax(-1).gather(1, best_C[:, None])[:, 0]
    right_C = logits_CA.argmax(-1) == best_C
    right_B = torch.ones(len(moves), dtype=torch.bool).logical_and(
        torch.ones(len(moves)).index_put((row_C,), right_C.float() - 1, accumulate=True) >= 1
    )
    return -logp_C.sum() / len(moves), float(right_B.float().mean())


def make_model(kind: str, game: Game, args: argparse.Namespace, changes: dict[str, Any]) -> Any:
    """Make a model with random weights."""
    longest = max(len(move.ids) for moves in game.moves.values() for move in moves) + 64
    width, heads = args.width, args.heads
    shared = {"vocab_size": len(game.tokenizer), "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        shape: dict[str, Any] = {"n_layer": args.layers, "n_embd": width, "n_head": heads, "n_positions": longest}
        shape |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    else:
        shape = {"num_hidden_layers": args.layers, "hidden_size": width, "num_attention_heads": heads}
        shape |= {"num_key_value_heads": heads, "intermediate_size": max(8, 8 * width // 3 // 8 * 8)}
        shape |= {"max_position_embeddings": longest, "tie_word_embeddings": True}
    family = {"canon": "canon_llama"}.get(kind, kind)
    std = changes.pop("embedding_std", None)
    matrix_std = changes.pop("matrix_std", None)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shared, **shape, **changes))
    with torch.no_grad():
        if std is not None:
            model.get_input_embeddings().weight.normal_(0, float(std))
        for name, weight in model.named_parameters():
            if matrix_std is not None and weight.ndim == 2 and "embed" not in name:
                weight.normal_(0, float(matrix_std))
    return model


def train(kind: str, game: Game, seed: int, args: argparse.Namespace, changes: dict[str, Any]) -> dict[str, Any]:
    """Train a model for some processor seconds. Return a line of the table."""
    torch.manual_seed(seed)
    model = make_model(kind, game, args, dict(changes))
    rng = np.random.default_rng(seed)
    tables = {id(model.get_input_embeddings().weight)}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    rest = [p for p in model.parameters() if p.ndim != 2 or id(p) in tables]
    optimizers = [
        torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay),
        Muon(matrices, lr=args.muon_lr, weight_decay=args.weight_decay),
    ]
    moves, held_out = game.moves["train"], game.moves["validation"][:200]
    spent, step, curve = 0.0, 0, list[tuple[int, float, float, float, float]]()
    model.train()
    trained = np.nan
    while True:
        if step % EVERY == 0:
            model.eval()
            with torch.no_grad():
                loss, right = listed_loss(model, held_out)
            model.train()
            curve.append((step, round(spent, 1), round(float(trained), 4), round(float(loss), 4), round(right, 4)))
            if spent >= args.seconds or (float(loss) < 0.003):
                break
        began = time.process_time()
        batch = [moves[i] for i in rng.choice(len(moves), args.batch, replace=False)]
        loss, _ = listed_loss(model, batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        warm = min(1.0, (step + 1) / 50)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = warm * (args.muon_lr if isinstance(optimizer, Muon) else args.lr)
            optimizer.step()
        spent, step, trained = spent + time.process_time() - began, step + 1, float(loss.detach())
    return {
        "game": game.name,
        "model": kind,
        "changes": changes,
        "layers": args.layers,
        "width": args.width,
        "seed": seed,
        "batch": args.batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(spent, 1),
        "steps": step,
        "train_loss": curve[-1][2],
        "loss": curve[-1][3],
        "best_loss": min(point[3] for point in curve),
        "right": curve[-1][4],
        "won": round(game.won(model), 4),
        "curve": curve,
    }


def main() -> None:
    """Train every model that was asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["apothecary", "coat_check", "embassy", "mailroom"])
    parser.add_argument("--models", nargs="+", default=["canon"], choices=["canon", "gpt2", "llama"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--set", action="append", default=[], help="key=value of the model's configuration")
    parser.add_argument("--out", type=Path, default=Path("runs/reading.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    changes = {}
    for word in args.set:
        key, _, value = word.partition("=")
        changes[key] = json.loads(value) if value[:1] in '0123456789tf["' else value
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.games:
        game = Game(name, args.vocab)
        for kind in args.models:
            for seed in args.seeds:
                line = train(kind, game, seed, args, changes)
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print({key: value for key, value in line.items() if key != "curve"}, flush=True)
                print("   ", line["curve"][:: max(1, len(line["curve"]) // 8)], flush=True)


if __name__ == "__main__":
    main()
