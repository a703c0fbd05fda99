"""The reference engine of ALFWorld, several times as fast, computing what it computes.

Pure functions remember what they returned (parses of PDDL and of grammars, a game's translation), copies are no deeper
than what is written to, and the second translation is left out that only its planner reads. Nothing that a player sees
is computed otherwise; `python -m benchmarks.alfworld_sweep --stock` is the same sweep without all this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def make_faster() -> None:
    """Change TextWorld in this process; once is enough."""
    from textworld.envs.pddl import logic, textgen

    _translate_once(logic.fast_downward)
    _parse_once(logic, textgen)
    _copy_less(textgen)


def _translate_once(fast_downward: Any) -> None:
    """One translation of a game instead of four: both are asked for twice, and one is there for the planner alone."""
    translate, load_lib = lru_cache(maxsize=1)(fast_downward.pddl2sas), fast_downward.load_lib

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        return (None, "") if optimize else translate(domain, problem)

    def load_lib_without_planner() -> Any:
        lib = load_lib()
        lib.load_sas_replan = lambda translation: None
        return lib

    fast_downward.pddl2sas, fast_downward.load_lib = pddl2sas, load_lib_without_planner


def _parse_once(logic: Any, textgen: Any) -> None:
    """Rules, conditions and templates are few, and a grammar is that of the game before but for the task."""
    parse = lru_cache(maxsize=None)(textgen._parse_and_convert)
    textgen._parse_and_convert = lambda text, rule_name, trace=False: _fresh(parse(text, rule_name=rule_name))
    textgen.Rule.parse_conjunctive_query = lru_cache(maxsize=None)(textgen.Rule.parse_conjunctive_query)
    logic.GameLogic = lru_cache(maxsize=64)(logic.GameLogic)


def _copy_less(textgen: Any) -> None:
    """Symbols are given contexts, and dictionaries new keys; what these hold is only ever read."""
    textgen.deepcopy = _fresh


def _fresh(value: Any) -> Any:
    """A copy of a dictionary, of a list of symbols, or of a symbol with those inside it."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [_fresh(one) for one in value]
    if not hasattr(value, "symbol"):
        return value
    other = object.__new__(type(value))
    other.__dict__.update({name: _fresh(part) if name != "context" else part for name, part in vars(value).items()})
    return other
