"""What ranks record about themselves while they run: calls, regions, memory.

The worlds install the recorder; a rank program uses `region` and `track_memory`.
"""
