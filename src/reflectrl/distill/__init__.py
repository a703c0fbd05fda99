"""Reflection distilled away: a policy learns to choose alone what a pair chose with its reflector."""
