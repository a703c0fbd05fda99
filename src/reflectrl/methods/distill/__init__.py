"""Distillation of a pair of reflector and policy into a policy that needs no reflections."""
