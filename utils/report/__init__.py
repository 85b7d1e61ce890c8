"""What a `Run` can be turned into: tables of traffic and memory, a timeline, a trace for Perfetto."""
