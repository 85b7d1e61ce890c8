"""The instructor's side of the course: nothing in here ever reaches a student.

markers     the marks in a lesson's source; lesson: reads solutions/NN_topic.py with them
execute     runs a lesson's notebook and keeps its outputs
build       lesson -> solutions/NN_topic/NN_topic.ipynb (executed) and notebooks/NN_topic/NN_topic.ipynb (for students)
release     notebooks + utils + requirements -> dist/distributed-training.zip, proved to hold no answer
hidden/     the tests that students don't see, one file a lesson
submission  the student's text in the official cells; notebook_file: reads whatever file was handed in
autograde   nbgrader's plug-ins: verdicts and points; gradebook: all of a submission's at once
judge       runs a notebook's checks, gives a verdict on each (verdict); hub: the network of its ranks; line: to a rank
sandbox     a command in a sandbox: what it sees; warden: what it takes; syscalls: what it may not call
ranks       rank processes that share nothing; inside/: what runs in the sandbox that they live in
collect     collects no links
classroom   collects, grades, exports, tells how it went; course, one_submission and kept: what it works with
cluster     judges on all cores or on many machines; worker: what one of them does
commands    python -m grader ...
"""
