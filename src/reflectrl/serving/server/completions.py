"""Completions of prompts, with log-probabilities: the part of OpenAI's (and vLLM's) API that rollouts need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import log_softmax, softmax

from reflectrl.core.prompts.tokens import beginning
from reflectrl.core.types import Sampling, named_seed
from reflectrl.models.backend import Candidates
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import COLDEST, draw
from reflectrl.serving.server.protocol import WIDEST, Refusal

Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Asked = TypeVar("Asked", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=1000)]
AT_ONCE = 64
"""Number of prompts computed together. Between such parts, other requests have their turn."""


class UnwantedError(Exception):
    """The client no longer waits for a result, so its computation stops."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class CompletionRequest(_Strict):
    """Prompts to be continued. Unknown fields are refused, since the answer would not be what was asked for."""

    model: Name
    prompt: str | Ids | Annotated[list[Ids], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=1000)] | None = None
    allowed_token_ids: Ids | None = None
    logprob_token_ids: Ids | None = None
    stop_token_ids: list[int] | None = None
    return_tokens_as_token_ids: bool = False
    n: Literal[1] = 1
    echo: Literal[False] = False
    stream: Literal[False] = False


class LoadRequest(_Strict):
    """Weights to be loaded under a name: an adapter, as with vLLM, or a whole model."""

    lora_name: Name
    lora_path: Name


class UnloadRequest(_Strict):
    """Name of weights to drop."""

    lora_name: Name


def read_body(kind: type[Asked], body: bytes) -> Asked:
    """Parse a request from its JSON. Raise a Refusal that names the first wrong field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:200]
        raise Refusal(400, f"{field or 'the body'}: {first['msg']}", "invalid_value", field or None) from None


def completions(
    lm: LanguageModel,
    drafts: DraftModel,
    request: CompletionRequest,
    prompts: Sequence[tuple[int, ...]],
    part: range,
    unwanted: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Return the choices for some of a request's prompts.

    Log-probabilities are normalised over the allowed tokens. For a single token (`max_tokens` and `top_p` 1) they are
    at temperature 1, also of its alternatives. Otherwise they are those of the distribution that was sampled from.

    Args:
        drafts: draft model that has learned from the model's earlier texts.
        prompts: all prompts of the request.
        part: numbers of those to be continued.
        unwanted: returns True if the client no longer waits for the answer.

    Raises:
        UnwantedError: the client no longer waits.
    """
    if unwanted():
        raise UnwantedError
    some, rngs = prompts[part.start : part.stop], [_generator(request.seed, i) for i in part]
    with lm.playing():
        if request.max_tokens == 1 and request.top_p == 1 and not request.top_k:
            return _scored(lm, request, some, rngs)
        return _written(lm, drafts, request, some, rngs, unwanted)


def answer_of(prompts: Sequence[tuple[int, ...]], choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the choices and the usage of an answer."""
    read, written = sum(map(len, prompts)), sum(len(choice.pop("ids")) for choice in choices)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {"choices": [{"index": i, **choice} for i, choice in enumerate(choices)], "usage": usage}


def prompts_of(lm: LanguageModel, request: CompletionRequest) -> list[tuple[int, ...]]:
    """Return the prompts as token ids. Raise Refusal if an id is unknown or the answer has no room in the context."""
    prompt = request.prompt
    if isinstance(prompt, str):
        if len(prompt) > WIDEST * lm.context:
            about = f"a prompt of {len(prompt):,} characters does not fit the context of {lm.context}"
            raise Refusal(400, about, "context_length_exceeded", "prompt")
        # A client that has used a chat template means its control tokens, and may have begun the sequence with one.
        ids, start = list(lm.tokenizer.encode(prompt, add_special_tokens=False)), list(beginning(lm.tokenizer))
        prompt = ids if ids[: len(start)] == start else start + ids
    nested: Sequence[Any] = prompt if prompt and isinstance(prompt[0], list) else [prompt]
    prompts = [tuple(token_ids) for token_ids in nested]
    vocabulary = lm.core.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    named = [*(request.allowed_token_ids or ()), *(request.logprob_token_ids or ())]
    if max((token for ids in (*prompts, named) for token in ids), default=0) >= vocabulary:
        raise Refusal(400, f"token ids must be below {vocabulary}, the model's vocabulary", "invalid_value", "prompt")
    longest = max(map(len, prompts))
    if longest == 0 or longest + request.max_tokens > lm.context:
        about = f"{longest} tokens and {request.max_tokens} to be written do not fit the context of {lm.context}"
        raise Refusal(400, about, "context_length_exceeded", "prompt")
    return prompts


def _generator(seed: int | None, prompt: int) -> np.random.Generator:
    return np.random.default_rng(None if seed is None else named_seed(seed, "completion", prompt))


def _scored(
    lm: LanguageModel,
    request: CompletionRequest,
    prompts: Sequence[tuple[int, ...]],
    rngs: Sequence[np.random.Generator],
) -> list[dict[str, Any]]:
    """Choose one token after each prompt, by the same forward pass as a policy that scores its labels."""
    vocabulary = lm.core.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens_A = np.array(request.allowed_token_ids or range(vocabulary))
    answers = Candidates(tuple((token,) for token in tokens_A.tolist()), (1,) * len(tokens_A))
    logits_PA, _ = lm.backend.score(prompts, [answers] * len(prompts))
    choices = []
    for logits_A, rng in zip(logits_PA.double().cpu().numpy(), rngs, strict=True):
        if not np.isfinite(logits_A).all():
            raise Refusal(500, "the model's logits are not finite: its weights are broken", "broken_weights")
        logp_A, index = log_softmax(logits_A), int(np.argmax(logits_A))
        if request.temperature:
            index = int(rng.choice(len(tokens_A), p=softmax(logits_A / max(request.temperature, COLDEST))))
        reported = np.argsort(-logp_A, kind="stable")[: request.logprobs or 0]
        if request.logprob_token_ids is not None:
            reported = np.flatnonzero(np.isin(tokens_A, request.logprob_token_ids))
        top = {int(tokens_A[at]): float(logp_A[at]) for at in (*reported, index)}
        choices.append(_choice(lm, request, [int(tokens_A[index])], [float(logp_A[index])], [top]))
    return choices


def _written(
    lm: LanguageModel,
    drafts: DraftModel,
    request: CompletionRequest,
    prompts: Sequence[tuple[int, ...]],
    rngs: Sequence[np.random.Generator],
    unwanted: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Write a text after each prompt. Only the written tokens get log-probabilities."""
    sampling = Sampling(request.temperature, request.top_p, request.top_k)

    def draw_allowed(
        logits_BV: torch.Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if unwanted():  # a text may have thousands of tokens
            raise UnwantedError
        if request.allowed_token_ids is not None:
            masked_BV = torch.full_like(logits_BV, -torch.inf)
            allowed = torch.tensor(request.allowed_token_ids, device=logits_BV.device)
            logits_BV = masked_BV.index_copy(1, allowed, logits_BV[:, allowed])
        return draw(logits_BV, generators, sampling)

    written = lm.backend.write(prompts, request.max_tokens, draw_allowed, rngs, None, drafts)
    choices = []
    for ids, logprobs in written:
        tops = [{token: logprob} for token, logprob in zip(ids, logprobs, strict=True)]
        choices.append(_choice(lm, request, ids, logprobs, tops))
    return choices


def _choice(
    lm: LanguageModel,
    request: CompletionRequest,
    ids: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[Mapping[int, float]],
) -> dict[str, Any]:
    def name(token: int) -> str:
        return f"token_id:{token}" if request.return_tokens_as_token_ids else str(lm.tokenizer.decode([token]))

    reported = None
    if request.logprobs is not None:
        reported = {
            "tokens": [name(token) for token in ids],
            "token_logprobs": list(logprobs),
            "top_logprobs": [{name(token): value for token, value in top.items()} for top in tops],
        }
    text = lm.tokenizer.decode(list(ids), skip_special_tokens=True)
    reason = "length" if len(ids) == request.max_tokens else "stop"
    return {"ids": ids, "text": text, "logprobs": reported, "finish_reason": reason}
