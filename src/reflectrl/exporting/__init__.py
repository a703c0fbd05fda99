"""Trained players in a folder of their own, and the hub that such a folder can be pushed to."""
