"""FrozenLake: gymnasium's grid of ice and holes as text."""
