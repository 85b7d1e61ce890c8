"""The library's packages: those of `utils` under the name `manyranks`, except the checks of the lessons.

Everything else about the library is in pyproject.toml, which can't rename packages that it finds by itself.
"""

from setuptools import find_packages, setup

setup(packages=["manyranks", *(f"manyranks.{name}" for name in find_packages("utils", exclude=["checks", "checks.*"]))])
