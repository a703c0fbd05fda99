"""The taxi's state in sentences, for pretrained models, whose tokens cut up the lines of a drawing.

There are two wordings of the same facts. A model trained on the first that plays the second shows whether it
understands the sentences or has memorised them.
"""

from __future__ import annotations

from reflectrl.wings.taxi.world import ABOARD, Cell, City, Ride


def words(city: City, ride: Ride) -> str:
    """Describe walls, taxi, passenger and destination in two lines.

    The walls come first: they stay the same, so a model need read them only once.
    """
    passenger = "aboard" if ride.passenger == ABOARD else _cell_words(city.landmarks[ride.passenger])
    destination = _cell_words(city.landmarks[ride.destination])
    walls = "; ".join(map(_cell_words, sorted(city.walls))) or "none"
    return (
        f"Walls on the east side of: {walls}.\n"
        f"Taxi: {_cell_words(ride.cell)}. Passenger: {passenger}. Destination: {destination}.\n"
    )


def reworded(city: City, ride: Ride) -> str:
    """Describe the same facts in other sentences and in another order, in one line."""
    aboard = ride.passenger == ABOARD
    customer = "sits in it" if aboard else f"waits in {_square(city.landmarks[ride.passenger])}"
    walls = ", ".join(map(_square, sorted(city.walls))) or "nowhere"
    return (
        f"The cab is in {_square(ride.cell)}; the customer {customer} and wants to get to"
        f" {_square(city.landmarks[ride.destination])}. Nobody can go east from: {walls}.\n"
    )


def _cell_words(cell: Cell) -> str:
    return f"row {cell[0]} column {cell[1]}"


def _square(cell: Cell) -> str:
    return f"column {cell[1]} of row {cell[0]}"


WORDINGS = {"words": words, "reworded": reworded}
