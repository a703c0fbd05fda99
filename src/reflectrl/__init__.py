"""reflectrl: teach a small, local, private language model to act in a multi-step text environment."""

__version__ = "0.1.0"
