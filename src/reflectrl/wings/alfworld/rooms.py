"""Furniture of four kinds of rooms, for generated games. Proportions were set by hand, after the official sets.

Kinds are spelled as in ALFWorld's files. The table of what each kind of receptacle can hold is ALFRED's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Chances = dict[str, tuple[float, int, int]]
"""Kind → the probability that a room has it, and the smallest and largest number if so."""


@dataclass(frozen=True)
class Room:
    """A kind of room: its scenes' numbers, receptacles, the things it always and sometimes has, and fixtures."""

    scenes: range
    receptacles: Chances
    always: str
    sometimes: dict[str, float]
    fixtures: Chances


ROOMS: Final = {
    "kitchen": Room(
        range(1, 31),
        {
            "SinkBasin": (1, 1, 1), "CoffeeMachine": (1, 1, 1), "CounterTop": (1, 1, 3), "Toaster": (1, 1, 1),
            "Microwave": (1, 1, 1), "StoveBurner": (1, 4, 4), "Fridge": (1, 1, 1), "GarbageCan": (1, 1, 1),
            "Cabinet": (1, 2, 24), "Drawer": (0.97, 1, 11), "DiningTable": (0.57, 1, 2), "Shelf": (0.2, 3, 3),
            "SideTable": (0.11, 1, 1), "Safe": (0.04, 1, 1),
        },
        "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Knife Lettuce Mug Pan PepperShaker Plate Pot Potato "
        "SaltShaker SoapBottle Spatula Spoon Tomato",
        {
            "Kettle": 0.52, "WineBottle": 0.43, "Ladle": 0.35, "PaperTowelRoll": 0.35, "Glassbottle": 0.24,
            "Vase": 0.16, "Statue": 0.16, "Book": 0.11, "CellPhone": 0.11, "CreditCard": 0.09, "SprayBottle": 0.07,
            "Pen": 0.07, "Pencil": 0.07,
        },
        {
            "StoveKnob": (1, 4, 4), "LightSwitch": (1, 1, 1), "Window": (0.89, 1, 2), "Chair": (0.84, 1, 2),
            "HousePlant": (0.36, 1, 1), "Blinds": (0.2, 1, 1), "Mirror": (0.09, 1, 1), "Curtains": (0.07, 1, 1),
        },
    ),
    "living": Room(
        range(201, 231),
        {
            "Sofa": (1, 1, 2), "ArmChair": (0.93, 1, 2), "CoffeeTable": (0.82, 1, 1), "SideTable": (0.82, 1, 3),
            "Drawer": (0.77, 1, 9), "DiningTable": (0.48, 1, 1), "Dresser": (0.38, 1, 1), "Shelf": (0.37, 2, 10),
            "TVStand": (0.35, 1, 1), "Cabinet": (0.15, 1, 8), "Ottoman": (0.12, 1, 1), "GarbageCan": (1, 1, 1),
        },
        "Box CreditCard KeyChain Laptop Pillow RemoteControl Statue",
        {
            "Newspaper": 0.61, "Vase": 0.57, "Watch": 0.5, "WateringCan": 0.49, "Plate": 0.35, "TissueBox": 0.34,
            "Book": 0.27, "DeskLamp": 0.25, "CellPhone": 0.21, "Boots": 0.2, "Pen": 0.19, "Pencil": 0.16,
            "Bowl": 0.11, "Candle": 0.1,
        },
        {
            "Television": (1, 1, 1), "FloorLamp": (1, 1, 1), "HousePlant": (1, 1, 2), "LightSwitch": (1, 1, 1),
            "Painting": (1, 1, 3), "Window": (0.96, 1, 4), "Chair": (0.71, 1, 6), "Curtains": (0.34, 1, 2),
        },
    ),
    "bedroom": Room(
        range(301, 331),
        {
            "Bed": (1, 1, 1), "GarbageCan": (1, 1, 1), "Drawer": (0.96, 2, 10), "Desk": (0.7, 1, 1),
            "Shelf": (0.67, 1, 8), "SideTable": (0.66, 1, 2), "Dresser": (0.46, 1, 1), "LaundryHamper": (0.27, 1, 1),
            "ArmChair": (0.2, 1, 2), "Safe": (0.17, 1, 1), "Cabinet": (0.16, 1, 4), "DiningTable": (0.13, 1, 1),
        },
        "AlarmClock Book CD CellPhone CreditCard KeyChain Laptop Pen Pencil Pillow",
        {
            "DeskLamp": 0.71, "Mug": 0.51, "Box": 0.47, "Bowl": 0.45, "BaseballBat": 0.41, "TennisRacket": 0.39,
            "BasketBall": 0.36, "TeddyBear": 0.35, "Cloth": 0.18, "Statue": 0.14, "TissueBox": 0.13,
            "RemoteControl": 0.12, "Boots": 0.1, "Watch": 0.07, "Vase": 0.06,
        },
        {
            "Window": (1, 1, 2), "LightSwitch": (1, 1, 1), "Mirror": (1, 1, 1), "Blinds": (0.91, 1, 2),
            "Chair": (0.79, 1, 2), "Painting": (0.43, 1, 2), "HousePlant": (0.28, 1, 1), "Poster": (0.23, 1, 2),
            "Television": (0.12, 1, 1),
        },
    ),
    "bathroom": Room(
        range(401, 431),
        {
            "SinkBasin": (1, 1, 2), "Toilet": (1, 1, 1), "ToiletPaperHanger": (1, 1, 1), "GarbageCan": (1, 1, 1),
            "HandTowelHolder": (1, 1, 2), "TowelHolder": (1, 1, 2), "CounterTop": (0.86, 1, 1),
            "BathtubBasin": (0.66, 1, 1), "Drawer": (0.57, 1, 8), "Cabinet": (0.45, 2, 7), "Shelf": (0.25, 1, 3),
            "Cart": (0.09, 1, 1), "Dresser": (0.08, 1, 1), "SideTable": (0.06, 1, 1),
        },
        "Candle Cloth HandTowel Plunger ScrubBrush SoapBar SoapBottle SprayBottle ToiletPaper Towel",
        {"TissueBox": 0.25, "DishSponge": 0.23, "PaperTowelRoll": 0.16},
        {
            "Mirror": (1, 1, 1), "LightSwitch": (1, 1, 1), "Window": (0.67, 1, 2), "ShowerDoor": (0.58, 1, 1),
            "ShowerGlass": (0.42, 1, 1), "Painting": (0.05, 1, 1),
        },
    ),
}  # fmt: skip

ROOMS_OF_TYPE: Final = {
    "pick_and_place_simple": {"kitchen": 0.1, "living": 0.27, "bedroom": 0.3, "bathroom": 0.33},
    "look_at_obj_in_light": {"living": 0.16, "bedroom": 0.84},
    "pick_clean_then_place_in_recep": {"kitchen": 0.77, "bathroom": 0.23},
    "pick_heat_then_place_in_recep": {"kitchen": 1.0},
    "pick_cool_then_place_in_recep": {"kitchen": 1.0},
    "pick_two_obj_and_place": {"kitchen": 0.15, "living": 0.27, "bedroom": 0.29, "bathroom": 0.29},
}

HOLDS: Final = {
    kind: kinds.split()
    for kind, kinds in {
        "ArmChair": "Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
        "Bed": "BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket",
        "Cabinet": "Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper "
        "Pan PepperShaker Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Vase "
        "WateringCan WineBottle",
        "Cart": "Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "CoffeeMachine": "Mug",
        "CoffeeTable": "Book Bowl Box Candle CellPhone CreditCard KeyChain Laptop Newspaper Pen Pencil Plate "
        "RemoteControl Statue TissueBox Vase Watch WateringCan",
        "CounterTop": "AlarmClock Apple Book Bowl Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup "
        "DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Pan Pen Pencil "
        "PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle Statue "
        "TissueBox ToiletPaper Tomato Vase WineBottle",
        "Desk": "AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth CreditCard KeyChain Laptop Mug Pen Pencil "
        "RemoteControl Statue TennisRacket TissueBox Vase Watch WateringCan",
        "DiningTable": "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone "
        "Cloth CreditCard Cup DishSponge Egg Fork Glassbottle Kettle KeyChain Knife Ladle Laptop Lettuce Mug "
        "Newspaper Pan Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBottle Spatula Spoon "
        "SprayBottle Statue TennisRacket TissueBox Tomato Vase Watch WateringCan WineBottle",
        "Drawer": "Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife "
        "Ladle Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon "
        "SprayBottle TissueBox ToiletPaper Watch WateringCan",
        "Dresser": "AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard KeyChain Laptop Mug "
        "Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper Vase Watch "
        "WateringCan",
        "Fridge": "Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
        "GarbageCan": "Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper Pen Pencil Potato SoapBar "
        "SoapBottle SprayBottle TissueBox ToiletPaper Tomato WineBottle",
        "HandTowelHolder": "HandTowel",
        "LaundryHamper": "Cloth",
        "Microwave": "Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
        "Ottoman": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "Safe": "CD CellPhone CreditCard KeyChain Statue Vase",
        "Shelf": "AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel "
        "Kettle KeyChain Mug Newspaper Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar SoapBottle "
        "SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan WineBottle",
        "SideTable": "AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone "
        "Cloth CreditCard Cup DishSponge Egg Fork HandTowel Kettle KeyChain Knife Laptop Lettuce Mug Newspaper Pan "
        "Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon "
        "SprayBottle Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle",
        "SinkBasin": "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle "
        "Lettuce Mug Pan Plate Pot Potato SoapBar Spatula Spoon Tomato",
        "Sofa": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "StoveBurner": "Kettle Pan Pot",
        "TVStand": "TissueBox",
        "Toilet": "Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
        "ToiletPaperHanger": "ToiletPaper",
        "TowelHolder": "Towel",
    }.items()
}
"""Receptacle kind → the kinds that can be put there."""

STANDS: Final = {
    "DeskLamp": ["Desk", "Dresser", "SideTable", "Shelf", "CoffeeTable"],
    "HousePlant": ["Shelf", "Desk", "SideTable", "CoffeeTable", "CounterTop", "Dresser"],
    "PaperTowelRoll": ["CounterTop", "Toilet", "DiningTable", "GarbageCan"],
    "TeddyBear": ["Bed"],
    "Television": ["TVStand", "Dresser"],
}
"""Kind that cannot be put anywhere → the receptacles on which it is found."""

LIKELY: Final = {
    "Bed": 6, "CounterTop": 4, "CoffeeTable": 4, "Desk": 4, "DiningTable": 3, "Dresser": 2, "Drawer": 3, "Fridge": 3,
    "HandTowelHolder": 50, "Sofa": 4, "StoveBurner": 8, "Toilet": 3, "TowelHolder": 50, "Cabinet": 3, "Shelf": 2,
    "SideTable": 2, "ArmChair": 1.5, "SinkBasin": 1.5, "BathtubBasin": 2,
}  # fmt: skip
"""Relative probability that a thing lies in a kind of receptacle. The default is 1."""

NOT_A_GOAL: Final = {"SinkBasin", "BathtubBasin", "HandTowelHolder", "TowelHolder", "LaundryHamper"}
NOT_FOR_TWO: Final = {"StoveBurner", "ToiletPaperHanger", "CoffeeMachine"}
ON_THE_FLOOR: Final = {"BaseballBat", "BasketBall", "Boots", "Plunger", "ScrubBrush", "TennisRacket"}
SINGLE: Final = ON_THE_FLOOR | {"Box", "DeskLamp", "HandTowel", "PaperTowelRoll", "TeddyBear", "Towel", "WateringCan"}

DOORS: Final = {"Microwave": 1.0, "Fridge": 1.0, "Drawer": 0.84, "Cabinet": 0.82, "Safe": 0.83}
"""Probability that a receptacle of a kind has a door. Without a door it is always open."""

BESIDE: Final = {
    "StoveBurner": ("StoveBurner", 0.5), "Drawer": ("Drawer", 0.25), "Cabinet": ("Cabinet", 0.15),
    "Shelf": ("Shelf", 0.12), "Toaster": ("CounterTop", 0.3), "CoffeeMachine": ("CounterTop", 0.22),
    "GarbageCan": ("Cabinet", 0.05), "TVStand": ("Shelf", 0.3), "Dresser": ("Drawer", 0.3),
}  # fmt: skip
"""Receptacles that share a place: kind → the kind that it may stand beside, and the probability that it does."""

FOOD: Final = {"Apple", "Egg", "Potato", "Tomato"}
CUTLERY: Final = {"ButterKnife", "Fork", "Knife", "Ladle", "Spatula", "Spoon"}
VESSELS: Final = {"Bowl", "Cup", "Mug", "Pan", "Plate", "Pot"}

ABLE: Final = {
    "isReceptacleObject": VESSELS | {"Box"},
    "cleanable": FOOD | CUTLERY | VESSELS | {"Cloth", "DishSponge", "Kettle", "Lettuce", "SoapBar"},
    "heatable": FOOD | {"Bread", "Cup", "Mug", "Plate"},
    "coolable": FOOD | VESSELS | {"Bread", "Lettuce", "WineBottle"},
    "sliceable": FOOD | {"Bread", "Lettuce"},
    "toggleable": {"DeskLamp", "FloorLamp"},
}
"""Ability → the kinds that have it."""

FIXED: Final = {kind for room in ROOMS.values() for kind in room.fixtures} | {"Bathtub", "DeskLamp", "Sink"}
"""The kinds that cannot be picked up."""
