"""The instructor's side of the course: nothing in here ever reaches a student.

markers     the marks in a lesson's source; lesson: reads solutions/NN_topic.py with them
execute     runs a lesson's notebook and keeps its outputs
build       lesson -> solutions/NN_topic/NN_topic.ipynb (executed) and notebooks/NN_topic/NN_topic.ipynb (for students)
release     notebooks + utils + requirements -> dist/distributed-training.zip, proved to hold no answer
hidden/     the tests that students don't see, one file a lesson
autograde   what nbgrader lacks, plugged in by nbgrader_config.py
sandbox     a command in a sandbox: what it sees; warden: what it takes; syscalls: what it may not call
ranks       rank processes that share nothing; inside/: what runs in the sandbox that they live in
sandboxed_kernel  a submission's kernel in one
collect     collects no links
classroom   collects, grades, exports, tells how it went
__main__    python -m grader ...
"""
