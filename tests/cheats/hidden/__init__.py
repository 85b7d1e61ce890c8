"""The hidden tests of that lesson."""
