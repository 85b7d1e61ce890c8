"""What exercises build on: small networks, pipeline schedules, a slow memory. Each module is imported by its name."""
