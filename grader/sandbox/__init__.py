"""Running a program that is not trusted: bubblewrap, a process that watches what it takes, and a filter of system calls."""
