"""Layout of generated scenes: the places of receptacles, and names for everything in the official form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from reflectrl.core.types import named_seed
from reflectrl.wings.alfworld import rooms
from reflectrl.wings.alfworld.writing import Fixture


class Layout(NamedTuple):
    """The fixed parts of a scene: its receptacles, and places without any."""

    receptacles: tuple[Fixture, ...]
    free: tuple[str, ...]

    @property
    def spots(self) -> list[str]:
        """Every location, once."""
        return list(dict.fromkeys([*(fixture.location for fixture in self.receptacles), *self.free]))

    def of(self, kinds: Sequence[str]) -> list[Fixture]:
        """Return the receptacles of some kinds."""
        return [fixture for fixture in self.receptacles if fixture.kind in kinds]


@lru_cache(maxsize=256)
def layout_of(room: str, scene: int) -> Layout:
    """Return the layout of a scene, which is the same in all its games."""
    rng = np.random.default_rng(named_seed("alfworld-scene", scene))
    spots = _spots(rng)
    names = Names(rng)
    fixtures: list[Fixture] = []
    for kind in drawn_kinds(rng, rooms.ROOMS[room].receptacles):
        location = _beside(rng, kind, fixtures) or next(spots)
        fixtures.append(Fixture(names.of(kind), kind, location, bool(rng.random() < rooms.DOORS.get(kind, 0))))
    fixtures.sort(key=lambda fixture: fixture.name)
    return Layout(tuple(fixtures), tuple(next(spots) for _ in range(6)))


def drawn_kinds(rng: np.random.Generator, chances: rooms.Chances) -> Iterator[str]:
    """Draw which kinds a room has, and yield each as often as the room has it."""
    for kind, (chance, fewest, most) in chances.items():
        if rng.random() < chance:
            yield from [kind] * int(rng.integers(fewest, most + 1))


def _beside(rng: np.random.Generator, kind: str, fixtures: Sequence[Fixture]) -> str:
    """Return the location of another receptacle that a new one of this kind shares, or ""."""
    other, chance = rooms.BESIDE.get(kind, ("", 0))
    locations = [fixture.location for fixture in fixtures if fixture.kind == other]
    return locations[-1] if locations and rng.random() < chance and locations.count(locations[-1]) < 3 else ""


def _spots(rng: np.random.Generator) -> Iterator[str]:
    """Yield distinct names of locations: two coordinates, a direction and an angle of view."""
    cells = list(product(range(-12, 13), range(-12, 13)))
    for cell in rng.permutation(len(cells)):
        components = (*cells[cell], int(rng.integers(4)), int(rng.choice([-30, -15, 0, 15, 30, 45, 60])))
        yield "loc_bar_" + "_bar_".join(str(component).replace("-", "_minus_") for component in components)


class Names:
    """Distinct PDDL names: a kind and three coordinates."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.used = rng, set[str]()

    def of(self, kind: str) -> str:
        """Return a new name for something of that kind."""
        body = kind.removesuffix("Basin")
        position = ""
        while not position or position in self.used:
            position = "_bar_".join(
                f"_{'plus' if coordinate >= 0 else 'minus'}_{abs(coordinate) // 100:02}_dot_{abs(coordinate) % 100:02}"
                for coordinate in self.rng.integers((-400, 1, -400), (400, 220, 400)).tolist()
            )
        self.used.add(position)
        return f"{body}_bar_{position}" + (f"_bar_{kind}" if body != kind else "")
