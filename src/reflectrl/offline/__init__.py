"""Offline learning from logs of episodes and samples: A-LoL (Leftover Lunch, ICLR 2024), its relatives and rivals."""
