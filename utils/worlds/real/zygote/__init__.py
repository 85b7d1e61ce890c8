"""The process that makes ranks: started once, in the background, so that every later world starts in milliseconds."""
