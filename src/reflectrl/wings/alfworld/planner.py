"""The privileged expert: it knows where everything is and finds a shortest way to win from any state of a house.

A plan is a sequence of deeds (take, treat, put down, switch on). Each may first need a walk and an opened door. A* over
such sequences is exact because nothing else can help: doors need not be closed, only the goal's objects need be taken,
and only what was in the hand at the start may have to be put anywhere but in its goal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from reflectrl.wings.alfworld.game import TREATMENTS, GameError
from reflectrl.wings.alfworld.house import House

Deed = tuple[str, int, int]
"""A verb, a thing and a receptacle: ("put", thing, receptacle). "visit" only moves to the receptacle."""

ALIKE = 4  # no plan has more than four stops, so four places of the same appearance are as good as all


class _State(NamedTuple):
    """A state of the search: all that deeds change.

    Attributes:
        location: where the player is.
        held: what is in the hand.
        opened: doors that the plan has opened.
        lying: (thing, receptacle) pairs.
        done: things that need no more work (prepared objects and lit lamps).
    """

    location: int
    held: int | None
    opened: frozenset[int]
    lying: frozenset[tuple[int, int]]
    done: frozenset[int]


def plan(house: House) -> list[str]:
    """Return a shortest list of commands that wins, in the words of the house's dialect; empty if the game is won.

    The house is not changed. If several plans are shortest, the same one is returned every time.

    Raises:
        GameError: the game cannot be won from here.
    """
    return _commands_of(house, _Search(house).deeds())


def best_command(house: House) -> str:
    """Return the first command of the plan.

    Raises:
        GameError: the game cannot be won from here, or is won already.
    """
    commands = plan(house)
    if not commands:
        raise GameError(f"{house.game.id} is won: there is nothing left to do")
    return commands[0]


def _commands_of(house: House, deeds: list[Deed]) -> list[str]:
    """Translate deeds into commands, with the walks and doors that they need."""
    game, location, opened = house.game, house.location, set(house.opened)
    put = "move {} to {}" if house.dialect == "current" else "put {} in/on {}"
    commands = []
    for verb, thing, index in deeds:
        receptacle = game.receptacles[index]
        if receptacle.location != location:
            commands.append(f"go to {receptacle.name}")
            location = receptacle.location
        if verb in ("take", "put") and receptacle.openable and index not in opened:
            commands.append(f"open {receptacle.name}")
            opened.add(index)
        words = {"take": "take {} from {}", "put": put, "use": "use {}", "visit": ""}.get(verb, verb + " {} with {}")
        commands += [words.format(game.things[thing].name, receptacle.name)] if words else []
    return commands


class _Search:
    """A search from the present state of a house.

    Official files have things in two receptacles at once: taken from one, such a thing still lies in the other. These
    things are `doubled`, and each is treated as unlike any other.
    """

    def __init__(self, house: House) -> None:
        game, goal = house.game, house.game.goal
        self.house, self.goal, self.receptacles = house, goal, game.receptacles
        self.wanted = {index for index, thing in enumerate(game.things) if thing.kind == goal.kind}
        self.lamps = {index for index, thing in enumerate(game.things) if thing.kind == goal.lamp}
        self.first_held = house.held
        self.watched = self.wanted | self.lamps
        lying = {(thing, index) for index, inside in enumerate(house.contents) for thing in self.watched & inside}
        lies = Counter([thing for thing, _ in lying] + [house.held] * (house.held is not None))
        self.doubled = {thing for thing, times in lies.items() if times > 1 and thing in self.wanted}
        done = {thing for thing in self.wanted if house.is_prepared(thing)}
        done |= {thing for thing in self.lamps if "toggled" in house.states[thing]}
        self.start = _State(house.location, house.held, frozenset(), frozenset(lying), frozenset(done))
        self._set_roles()
        self._set_bounds()

    # ---- what matters ----------------------------------------------------------------------------------------------

    def _set_roles(self) -> None:
        """Find the receptacles worth going to, and what each is good for."""
        things, held_thing, goal = self.house.game.things, self.first_held, self.goal
        self.verb, tool, self.ability = TREATMENTS.get(goal.state, ("", "", ""))
        roles = [
            (
                receptacle.kind == tool,
                receptacle.kind == goal.receptacle,
                receptacle.kind == goal.receptacle and goal.kind in receptacle.holds,
                held_thing is not None and things[held_thing].kind in receptacle.holds,
                bool(self.doubled) and goal.kind in receptacle.holds,
            )
            for receptacle in self.receptacles
        ]
        distinct = self._distinct_receptacles(roles)
        self.tools, self.targets, self.places, self.doubled_places = list[int](), list[int](), list[int](), list[int]()
        self.counted = set[int]()
        for index in distinct:
            is_tool, counts, is_target, can_hold, can_hold_doubled = roles[index]
            if is_tool:
                self.tools.append(index)
            if counts:
                self.counted.add(index)
            if is_target:
                self.targets.append(index)
            if can_hold:
                self.places.append(index)
            if can_hold_doubled:
                self.doubled_places.append(index)
        able = {index for index in self.wanted if "pickupable" in things[index].abilities}
        self.sources = sorted(
            (thing, index) for thing, index in self.start.lying if thing in able and index in distinct
        )

    def _distinct_receptacles(self, roles: Sequence[tuple[bool, ...]]) -> list[int]:
        """Return the receptacles, without those at places that only repeat what other places offer."""
        contents: dict[int, list[tuple[int, ...]]] = {}
        for thing, index in self.start.lying:
            abilities = self.house.game.things[thing].abilities
            about = (name in abilities for name in ("pickupable", "toggleable", self.ability))
            identity = thing if thing in self.doubled else -1
            contents.setdefault(index, []).append((identity, thing in self.lamps, thing in self.start.done, *about))
        distinct: list[int] = []
        seen: Counter[object] = Counter()
        for location, indices in self.house.game.here.items():
            offers = [
                (self._is_shut(index), roles[index], tuple(sorted(contents.get(index, ()))))
                for index in indices
                if index in contents or any(roles[index])
            ]
            appearance = tuple(sorted(offers))
            repeats = seen[appearance] if location != self.start.location else 0  # the player's own place is unique
            seen[appearance] += location != self.start.location
            if offers and repeats < ALIKE:
                distinct += indices
        return sorted(distinct)

    def _is_shut(self, receptacle: int) -> bool:
        return not self.house.is_accessible(receptacle)

    def _set_bounds(self) -> None:
        """Collect the places for each kind of deed, and the least number of walks between them."""

        def locations(indices: list[int]) -> frozenset[int]:
            return frozenset(self.receptacles[index].location for index in indices)

        self.at_source = locations([index for _, index in self.sources])
        self.at_tool, self.at_target = locations(self.tools), locations(self.targets)
        self.tool_to_target = int(self.at_tool.isdisjoint(self.at_target))
        self.source_to_tool = int(self.at_source.isdisjoint(self.at_tool))
        self.source_to_target = int(self.at_source.isdisjoint(self.at_target))

    # ---- searching -------------------------------------------------------------------------------------------------

    def deeds(self) -> list[Deed]:
        """Return the deeds of a shortest plan, found by A*."""
        best = {self.start: 0}
        came_from: dict[_State, tuple[_State, Deed]] = {}
        queue: list[tuple[int, int, int, _State]] = [(self._bound(self.start), 0, 0, self.start)]
        # Ties go to the state that was pushed first, so the same plan is found every time.
        pushed = 0
        while queue:
            _, _, negative, state = heappop(queue)
            spent = -negative
            if spent > best[state]:
                continue
            if self._bound(state) == 0:
                deeds = []
                while state in came_from:
                    state, deed = came_from[state]
                    deeds.append(deed)
                return deeds[::-1]
            for deed, cost, successor in self._steps(state):
                total = spent + cost
                if total < best.get(successor, total + 1):
                    best[successor], came_from[successor] = total, (state, deed)
                    pushed += 1
                    heappush(queue, (total + self._bound(successor), pushed, -total, successor))
        raise GameError(f"{self.house.game.id} cannot be won from here")

    def _steps(self, state: _State) -> Iterator[tuple[Deed, int, _State]]:
        """Yield deeds that may help, each with its cost in commands and the state that it leads to."""
        for thing, index in sorted(state.lying) if self.goal.lamp else ():
            if thing in state.done and thing in self.lamps:
                yield self._step(state, ("visit", thing, index))
            elif thing in self.lamps and "toggleable" in self.house.game.things[thing].abilities:
                yield self._step(state, ("use", thing, index), done=state.done | {thing})
        if state.held is None:
            yield from self._take_steps(state)
            return
        held_thing = state.held
        ready = held_thing in self.wanted and held_thing in state.done
        if held_thing in self.wanted and not ready and self.ability in self.house.game.things[held_thing].abilities:
            for index in self.tools:
                yield self._step(state, (self.verb, held_thing, index), done=state.done | {held_thing})
        # A prepared thing goes to the goal. A doubled thing may lie there already: then it can be put anywhere.
        if held_thing == self.first_held and (not ready or self.doubled):
            destinations = self.places
        elif ready:
            destinations = self.doubled_places if held_thing in self.doubled else self.targets
        else:
            destinations = []
        for index in destinations:
            lying = state.lying | {(held_thing, index)} if held_thing in self.watched else state.lying
            yield self._step(state, ("put", held_thing, index), held=None, lying=lying)

    def _take_steps(self, state: _State) -> Iterator[tuple[Deed, int, _State]]:
        """Yield takes of things from where they lay at first. Taking up again what the plan put down cannot help."""
        tried = set()
        for pair in self.sources:
            thing, index = pair
            identity = thing if thing in self.doubled else None
            kind = (index, identity, thing in state.done, self.house.game.things[thing].abilities)
            if pair in state.lying and kind not in tried:
                tried.add(kind)
                yield self._step(state, ("take", thing, index), held=thing, lying=state.lying - {pair})

    def _step(self, state: _State, deed: Deed, **change: object) -> tuple[Deed, int, _State]:
        verb, _, index = deed
        receptacle = self.receptacles[index]
        cost = int(verb != "visit") + int(receptacle.location != state.location)
        if verb in ("take", "put") and self._is_shut(index) and index not in state.opened:
            cost += 1
            change["opened"] = state.opened | {index}
        return deed, cost, state._replace(location=receptacle.location, **change)  # type: ignore[arg-type]

    # ---- lower bound of the cost -----------------------------------------------------------------------------------

    def _bound(self, state: _State) -> int:
        """Return a lower bound on the commands that a win takes. It is 0 only when the game is won."""
        if not self.goal.lamp:
            return self._place_bound(state)
        here = {thing for thing, index in state.lying if self.receptacles[index].location == state.location}
        lamps = self.lamps & here
        lamp_bound = 0 if lamps & state.done else 1 if lamps or self.lamps & state.done else 2
        return lamp_bound + (0 if state.held in self.wanted else 1 if state.held is None else 2)

    def _place_bound(self, state: _State) -> int:
        ready = Counter(i for thing, i in state.lying if i in self.counted and thing in state.done)
        missing = self.goal.count - max(ready.values(), default=0)
        if missing <= 0:
            return 0
        here, held_thing = state.location, state.held
        if self.doubled:
            return 1 if held_thing in self.wanted else 2 + (held_thing is not None)
        # Every missing object needs a take and a put; an object in the hand needs only its put.
        if held_thing in self.wanted:
            if held_thing in state.done:
                return 2 * missing - 1 + (here not in self.at_target)
            if state.done:  # another is ready: perhaps it is better to put this one down
                return 2
            return 2 * missing + (here not in self.at_tool) + self.tool_to_target
        walks = self.source_to_target if state.done else 1 + self.source_to_tool + self.tool_to_target
        return 2 * missing + (held_thing is not None) + (here not in self.at_source) + walks
