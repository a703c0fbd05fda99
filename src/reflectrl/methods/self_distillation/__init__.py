"""Reflection in hindsight: texts that know what followed teach the policy, and nothing is written at play."""
