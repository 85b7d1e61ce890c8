"""What went wrong, explained: deadlocks, silent mistakes, failures, and the exceptions that carry the reports."""
