"""What every kind of rank shares: how a program travels to it, what surrounds it there, and how its result comes back."""
