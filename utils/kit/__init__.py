"""Models and tools that exercises build on: small networks, schedules, a slow memory. Lessons import them by module."""
