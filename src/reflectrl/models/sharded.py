"""Models whose weights are sharded across the ranks of a run (torch's FSDP), and the lockstep of the ranks.

Each rank keeps a shard of every weight. A layer's weights are gathered when a pass comes to the layer and freed after
it, and its gradient is reduced and scattered in the backward pass. All ranks take part in both, so all must make the
same passes, although some play longer episodes or have more rows to learn from. So the ranks agree before every pass.
As long as any rank needs a pass, the others read a single token with the same model, without a gradient or with a zero
gradient. A rank that waits for the others (`distributed.Team`) helps them meanwhile, so the code of learning and play
is the same as for one process.

Frozen backbones are sharded before adapters are added. Adapters are small, and every rank keeps them in full.
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

from reflectrl.core.distributed import Team, all_present
from reflectrl.core.types import UserError
from reflectrl.models.pieces import activate
from reflectrl.models.plain import Output, PlainBackend

if TYPE_CHECKING:
    from reflectrl.models.lm import LanguageModel

DONE, BACKWARD, READ, LEARN = range(4)
"""Kinds of requests by a rank: nothing more, a backward pass, a forward pass without gradient, or one with gradient."""


class Wish(NamedTuple):
    """Request of a rank for its next step. All ranks carry out the largest request, so passes come before gradients.

    Attributes:
        kind: one of the four kinds above.
        model: number of the model (`Shards.number`).
        adapter: index of the active adapter among the model's adapters.
    """

    kind: int
    model: int = 0
    adapter: int = 0


class Lockstep:
    """Coordinator of a team's sharded models, whose passes all ranks make together."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.models: weakref.WeakValueDictionary[int, Shards] = weakref.WeakValueDictionary()
        self._made = 0
        self._zeros: list[Tensor] = []

    def divide(self, core: nn.Module, device: torch.device) -> Shards:
        """Shard a model: keep this rank's shard of every weight, on the device.

        Raises:
            UserError: the library's code for this family does not mark layers that can be gathered one by one.
        """
        layers = [module for module in core.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise UserError(f"models of the kind {core.config.model_type} cannot be divided; set model.shard = false")  # type: ignore[union-attr]
        mesh = init_device_mesh(device.type, (self.team.size,))
        for module in (*layers, core):
            part: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            part.set_gradient_divide_factor(1.0)  # ranks compute shares of one sum: gradients are summed, not averaged
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds
            part.set_reduce_scatter_unused_params(True)  # such as experts to which no token of a rank is routed
        self._made += 1
        shards = self.models[self._made] = Shards(self, self._made, core)
        return shards

    # ---- agreeing ------------------------------------------------------------------------------------------------

    def take(self, wish: Wish) -> None:
        """Help the other ranks with their requests until all agree on this rank's request."""
        while (agreed := self._agreed(wish)) != wish:
            if agreed.kind == BACKWARD:
                self._back()
            else:
                self.models[agreed.model].pass_one_token(agreed)

    def settle(self) -> None:
        """Help the other ranks until none has a request left."""
        self.take(Wish(DONE))
        self._zeros.clear()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss, together with the other ranks' backward passes."""
        self.take(Wish(BACKWARD))
        self._back(loss)

    def hold(self, *outputs: Tensor) -> None:
        """Remember a pass with gradient, so that every rank runs its backward pass even if it does not use the output.

        An empty sum of each output is added to the loss: its gradient is zero, but FSDP's communication still runs.
        """
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
    """This rank's shards of a model.

    Attributes:
        number: number of the model, the same on all ranks.
        carrier: weak reference to the model itself, or to the `PeftModel` around it.
    """

    def __init__(self, steps: Lockstep, number: int, carrier: nn.Module) -> None:
        self.steps, self.number = steps, number
        self.carry(carrier)

    def carry(self, carrier: nn.Module) -> None:
        """Set the module that carries the adapters."""
        self.carrier: Callable[[], Any] = weakref.ref(carrier)

    def wish(self, learns: bool, adapter: str | None) -> Wish:
        """Return the request for a pass with this adapter."""
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
        """Make a frozen model of the same shape, sharded in the same way. The caller must set its weights."""
        with torch.random.fork_rng():  # the model is made with random weights
            made = type(core)._from_config(copy.deepcopy(core.config), dtype=core.dtype)
        made.requires_grad_(False).eval()
        return made, self.steps.divide(made, core.get_input_embeddings().weight.device)


class ShardedBackend(PlainBackend):
    """Plain backend of a sharded model: all ranks make each of its passes together."""

    def __init__(self, lm: LanguageModel, shards: Shards) -> None:
        super().__init__(lm)
        self.shards, self.steps = shards, shards.steps

    def forward(self, ids: Sequence[int], **options: Any) -> tuple[Tensor, Tensor, Any]:
        found: tuple[Tensor, Tensor, Any] = self._together(partial(super().forward, ids, **options))
        return found

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute logits by the model's own head: pass a single token, and swap in these hidden states by a hook."""
        logits_NV, _ = self._together(partial(self._swapped, hidden_ND))
        self.lm.counters.logits += logits_NV.numel()
        return logits_NV if rows is None else logits_NV[:, rows]

    def _swapped(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N, V) of hidden states, and the layers' own output for the single token."""
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
        """Run a pass together with all ranks. The first two values that `compute` returns must be tensors."""
        learns = torch.is_grad_enabled()
        self.lm.activate()
        self.steps.take(self.shards.wish(learns, self.lm.adapter))
        with passing(learns):
            found = compute()
            self.steps.hold(*found[:2])
        return found


@contextmanager
def passing(learns: bool) -> Iterator[None]:
    """Set the gradient mode for a forward or backward pass within the block.

    Inference mode is switched off, because FSDP's tensors cannot be created in it.

    Raises:
        LostRank: communication failed, since another rank has died or timed out.
    """
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
