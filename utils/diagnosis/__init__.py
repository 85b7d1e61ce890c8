"""What went wrong, in words: deadlocks, silent mistakes, failures, and the exceptions that carry the reports."""
