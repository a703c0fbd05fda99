"""Pretrained models: download them, and play with them before any training."""
