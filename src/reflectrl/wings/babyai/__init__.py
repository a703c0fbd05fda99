"""BabyAI in words, on the package `minigrid`."""
