"""What ranks write down about themselves while they run: calls, regions, memory. The worlds install it; a rank program
uses `region` and `track_memory`."""
