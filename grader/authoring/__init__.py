"""Making lessons: reading the sources, building and running the notebooks, packing the students' bundle."""
