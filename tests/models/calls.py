"""Short forms of the backend's calls, for tests."""

from collections.abc import Sequence

from torch import Tensor

from reflectrl.models.backend import Candidates, Scoring
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import Ids, KVCache, no_sharing


def action_texts(lm: LanguageModel, actions: Sequence[str]) -> Candidates:
    """What a policy would write to take each of the actions."""
    return Policy(lm, scoring="sum").candidates(tuple(actions))


def choice_logits(
    lm: LanguageModel, prompts: Sequence[Ids], label_ids: Sequence[int], caches: Sequence[KVCache] | None = None
) -> Tensor:
    """Logits (P, A) of the same labels after each prompt; gradients flow where there are no caches."""
    labels = Candidates(tuple((token,) for token in label_ids), (1,) * len(label_ids))
    asked = no_sharing(prompts) if caches is None else prompts
    return lm.backend.score(asked, [labels] * len(prompts), "enumeration", caches)[0]


def cached_text_logits(
    lm: LanguageModel,
    prompts: Sequence[Ids],
    texts: Sequence[Candidates],
    scoring: Scoring,
    caches: Sequence[KVCache],
) -> Tensor:
    """Logits (P, A) of the actions' texts, each prompt continued from what its cache holds."""
    return lm.backend.score(prompts, texts, scoring, caches)[0]
