"""The hidden tests of lesson 08: what the visible checks fix, these vary. Same form, same judges."""
