"""The process that makes ranks. It is started once, in the background, so that every world starts in milliseconds."""
