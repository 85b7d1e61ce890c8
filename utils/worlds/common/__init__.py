"""What every kind of world shares: how a program travels to its ranks, what they find there, how results come back."""
