"""Name that earlier versions gave to `reflectrl.core.plugins`."""

from reflectrl.core.moved import bridge

bridge(__name__, "reflectrl.core.plugins")
