"""Work with other processes: clients of model endpoints, servers of trained agents, and rollouts on servers."""
