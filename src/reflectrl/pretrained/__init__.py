"""Pretrained models: getting one, and asking it before it has learned anything."""
