"""Games of TextArena for one player, where their actions can be listed."""
