"""Portals: a puzzle that takes several look-ups in a row, to see when a written reflection helps."""
