"""The checks of a lesson that asks for the same few functions again and again, once for each cheat."""
