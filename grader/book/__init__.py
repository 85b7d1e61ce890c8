"""The book: a static site of the lessons, of docs/ and of the functions that students call. `make book` builds it."""
