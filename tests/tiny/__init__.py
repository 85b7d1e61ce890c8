"""The checks of the tiny lesson of tests/tiny_course.py, in packages of their own as in another course."""
