"""What exercises build on: small networks, pipeline schedules, a slow memory. Lessons import each module by name."""
