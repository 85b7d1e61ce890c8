"""What a rank runs when a check calls an answer. Grading shows it to the ranks, and none of the checks."""
