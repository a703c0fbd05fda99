"""Name that earlier versions gave to `reflectrl.core.types`."""

from reflectrl.core.moved import bridge

bridge(__name__, "reflectrl.core.types")
