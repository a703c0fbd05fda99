"""Large language models around the small one, behind an OpenAI-compatible address: teacher, contestant, reflector."""
