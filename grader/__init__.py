"""The instructor's side of the course. Nothing in here ever reaches a student.

authoring   from a lesson's source to its notebooks, and to the students' bundle
classroom   a class, from what was handed in to the table of grades
judging     runs one notebook's checks against sandboxed ranks and gives a verdict on each
inside      what runs inside the sandbox: the host, the ranks, the program slicer
sandbox     a command in a sandbox: what it sees, what it takes, which system calls it may make
pages       feedback for students and the report for instructors, with nothing active in them
hidden      the tests that students don't see, one file per lesson
commands    python -m grader ...
"""
