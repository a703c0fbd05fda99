"""Other processes: endpoints that are asked, servers that answer, rollouts elsewhere."""
