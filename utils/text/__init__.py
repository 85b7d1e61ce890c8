"""What people read and see: tables, units, sets of ranks, lines of code, SVG. Needs none of our packages."""
