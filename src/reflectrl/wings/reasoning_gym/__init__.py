"""Questions of reasoning-gym, whose answers a program verifies, as prompts and a reward for text tasks."""
