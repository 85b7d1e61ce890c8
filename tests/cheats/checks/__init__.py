"""The checks of a lesson that asks for the same few functions over and over, once for each cheat."""
