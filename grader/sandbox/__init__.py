"""Running untrusted programs: bubblewrap, a process that watches their resources, and a filter for system calls."""
