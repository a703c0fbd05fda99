"""A model whose weights are divided among the ranks of a run (torch's FSDP), and how the ranks keep in step.

Each rank keeps a piece of every weight. A layer's weights are gathered when a pass comes to it and let go behind it,
and its gradient is summed and divided on the way back: all ranks take part in both, so all have to make the same
passes, though one plays longer episodes than another, or has more rows to learn from. So they agree before every pass.
As long as one of them needs one, the others read a single token with the same model, without gradient or with a zero
of one. A rank that waits for the others (`distributed.Team`) helps them meanwhile, so learning and play need not know.

Frozen backbones are divided before adapters are put on them: adapters are small, and stay whole on every rank.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from reflectrl.distributed import Team, all_present
from reflectrl.models.pieces import activate
from reflectrl.models.plain import Output, PlainBackend
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.models.lm import LanguageModel

DONE, BACKWARD, READ, LEARN = range(4)
"""What a rank may wish for: nothing more, to go back through its passes, a pass without gradient, or with one."""


class Wish(NamedTuple):
    """What a rank needs next. Of the ranks' wishes the greatest is carried out by all: passes come before gradients.

    Attributes:
        kind: one of the four above.
        model: the number of the model (`Shards.number`).
        adapter: the place of its active adapter among those that it carries.
    """

    kind: int
    model: int = 0
    adapter: int = 0


class Lockstep:
    """The passes of a team's divided models, which all ranks make together."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.models: weakref.WeakValueDictionary[int, Shards] = weakref.WeakValueDictionary()
        self._made = 0
        self._zeros: list[Tensor] = []

    def divide(self, core: nn.Module, device: torch.device) -> Shards:
        """Leave this rank its piece of every weight, on the device.

        Raises:
            UserError: the library's code for this family has no layers that could be gathered one by one.
        """
        layers = [module for module in core.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise UserError(f"models of the kind {core.config.model_type} cannot be divided; set model.shard = false")  # type: ignore[union-attr]
        mesh = init_device_mesh(device.type, (self.team.size,))
        for module in (*layers, core):
            part: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            part.set_gradient_divide_factor(1.0)  # shares of one sum, as everywhere here, and not a mean over ranks
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds
            part.set_reduce_scatter_unused_params(True)  # experts that a rank's tokens do not come to
        self._made += 1
        shards = self.models[self._made] = Shards(self, self._made, core)
        return shards

    # ---- agreeing ------------------------------------------------------------------------------------------------

    def take(self, wish: Wish) -> None:
        """Help the others until all are to do what this rank wishes for."""
        while (agreed := self._agreed(wish)) != wish:
            if agreed.kind == BACKWARD:
                self._back()
            else:
                self.models[agreed.model].pass_one_token(agreed)

    def settle(self) -> None:
        """Help the others until nobody needs anything more."""
        self.take(Wish(DONE))
        self._zeros.clear()

    def backward(self, loss: Tensor) -> None:
        """Go back through the passes that led to a loss, and through those that the others made meanwhile."""
        self.take(Wish(BACKWARD))
        self._back(loss)

    def hold(self, *outputs: Tensor) -> None:
        """Have a pass with gradient gone back through on every rank, whoever has a use for what came out of it."""
        self._zeros += [tensor[:0].sum() for tensor in outputs if tensor.requires_grad]

    def _back(self, *losses: Tensor) -> None:
        zeros, self._zeros = self._zeros, []
        if losses or zeros:
            with passing(True):
                sum([*losses, *zeros], torch.zeros(())).backward()

    def _agreed(self, wish: Wish) -> Wish:
        own = torch.tensor(wish)
        found = [torch.empty_like(own) for _ in range(self.team.size)]
        with all_present():
            dist.all_gather(found, own)
        return max(Wish(*one.tolist()) for one in found)


class Shards:
    """This rank's pieces of one model.

    Attributes:
        number: of the model, the same on all ranks.
        carrier: the model itself, or the `PeftModel` that has put adapters on it.
    """

    def __init__(self, steps: Lockstep, number: int, carrier: nn.Module) -> None:
        self.steps, self.number = steps, number
        self.carry(carrier)

    def carry(self, carrier: nn.Module) -> None:
        """Note what carries the adapters."""
        self.carrier: Callable[[], Any] = weakref.ref(carrier)

    def wish(self, learns: bool, adapter: str | None) -> Wish:
        """What is to be wished for before a pass."""
        place = list(self.carrier().peft_config).index(adapter) if adapter is not None else 0
        return Wish(LEARN if learns else READ, self.number, place)

    def pass_one_token(self, wish: Wish) -> None:
        """Take part in a pass that another rank needs."""
        carrier = self.carrier()
        adapters = list(getattr(carrier, "peft_config", ()))
        if adapters:
            activate(carrier, adapters[wish.adapter])
        core = carrier.get_base_model() if adapters else carrier
        with passing(wish.kind == LEARN):
            self.steps.hold(core(input_ids=_one_token(core), use_cache=False).logits[0])

    def frozen_copy(self, core: Any) -> tuple[Any, Shards]:
        """Another model of this shape that never learns, divided alike; its weights are still to be set."""
        with torch.random.fork_rng():  # they are drawn at first
            made = type(core)._from_config(copy.deepcopy(core.config), dtype=core.dtype)
        made.requires_grad_(False).eval()
        return made, self.steps.divide(made, core.get_input_embeddings().weight.device)


class ShardedBackend(PlainBackend):
    """The plain backend of a divided model: all ranks make each of its passes together."""

    def __init__(self, lm: LanguageModel, shards: Shards) -> None:
        super().__init__(lm)
        self.shards, self.steps = shards, shards.steps

    def forward(self, ids: Sequence[int], **options: Any) -> tuple[Tensor, Tensor, Any]:
        found: tuple[Tensor, Tensor, Any] = self._together(partial(super().forward, ids, **options))
        return found

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """By the model's own head, in a pass of one token behind whose layers these hidden states are put."""
        logits_NV, _ = self._together(partial(self._swapped, hidden_ND))
        self.lm.counters.logits += logits_NV.numel()
        return logits_NV if rows is None else logits_NV[:, rows]

    def _swapped(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, V) of hidden states, and what the layers made of the one token."""
        own: list[Tensor] = []

        def swap(module: nn.Module, given: Any, output: Any) -> Output:
            own.append(output[0])
            return Output(hidden_ND[None])

        hook = self.body.register_forward_hook(swap)
        try:
            logits_NV = self.core(input_ids=_one_token(self.core), use_cache=False).logits[0]
        finally:
            hook.remove()
        return logits_NV, own[0][0]

    def _together(self, compute: Callable[[], Any]) -> Any:
        """What a pass returns, tensors of it first."""
        learns = torch.is_grad_enabled()
        self.lm.activate()
        self.steps.take(self.shards.wish(learns, self.lm.adapter))
        with passing(learns):
            found = compute()
            self.steps.hold(*found[:2])
        return found


@contextmanager
def passing(learns: bool) -> Iterator[None]:
    """Within the block a pass is made, or gone back through. FSDP's tensors cannot be made in inference mode."""
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(learns):
            yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in ("gloo", "nccl")):
            raise
        with all_present():
            raise


def _one_token(core: Any) -> Tensor:
    return torch.zeros(1, 1, dtype=torch.long, device=core.get_input_embeddings().weight.device)
