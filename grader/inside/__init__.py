"""What runs inside the sandbox. It holds no secret: a submission can read all of it."""
