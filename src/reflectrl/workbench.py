"""Name that earlier versions gave to `reflectrl.tools.workbench`."""

from reflectrl.core.moved import bridge

bridge(__name__, "", {"check": "reflectrl.tools.workbench.check"})
