"""A faster version of ALFWorld's reference engine, with the same results.

Pure functions are cached (parses of PDDL and of grammars, the translation of a game). Copies are only as deep as what
is changed afterwards. The second translation is left out, since only the planner reads it. Nothing that a player sees
changes; `python -m benchmarks.alfworld_sweep --stock` runs the same sweep without these changes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def make_faster() -> None:
    """Patch TextWorld in this process. Call it once."""
    from textworld.envs.pddl import logic, textgen

    _translate_once(logic.fast_downward)
    _parse_once(logic, textgen)
    _copy_less(textgen)


def _translate_once(fast_downward: Any) -> None:
    """Translate each game once, not four times. Both translations are asked for twice; only the planner reads one."""
    translate, load_lib = lru_cache(maxsize=1)(fast_downward.pddl2sas), fast_downward.load_lib

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        return (None, "") if optimize else translate(domain, problem)

    def load_lib_without_planner() -> Any:
        lib = load_lib()
        lib.load_sas_replan = lambda translation: None
        return lib

    fast_downward.pddl2sas, fast_downward.load_lib = pddl2sas, load_lib_without_planner


def _parse_once(logic: Any, textgen: Any) -> None:
    """Cache parses: rules, conditions and templates are few, and grammars of successive games differ by the task."""
    parse = lru_cache(maxsize=None)(textgen._parse_and_convert)
    textgen._parse_and_convert = lambda text, rule_name, trace=False: _fresh(parse(text, rule_name=rule_name))
    textgen.Rule.parse_conjunctive_query = lru_cache(maxsize=None)(textgen.Rule.parse_conjunctive_query)
    logic.GameLogic = lru_cache(maxsize=64)(logic.GameLogic)


def _copy_less(textgen: Any) -> None:
    """Copy only what is changed. Symbols get contexts and dictionaries get new keys, but their values are only read."""
    textgen.deepcopy = _fresh


def _fresh(value: Any) -> Any:
    """Copy a dictionary, a list of symbols, or a symbol with the symbols inside it."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return [_fresh(element) for element in value]
    if not hasattr(value, "symbol"):
        return value
    other = object.__new__(type(value))
    other.__dict__.update({name: _fresh(part) if name != "context" else part for name, part in vars(value).items()})
    return other
