"""The checks of the tiny lesson of tests/tiny_course.py, as a course of its own would bring them."""
