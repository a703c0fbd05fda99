"""Offline learning from logged episodes and samples: A-LoL (Leftover Lunch, ICLR 2024), its variants and baselines."""
