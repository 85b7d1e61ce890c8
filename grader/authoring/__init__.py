"""Making lessons: starting one, reading the sources, judging all answers to an exercise, building and running the
notebooks, packing the students' bundle.
"""
