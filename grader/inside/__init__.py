"""What runs inside the sandbox of a submission. It holds no secret: nothing of the answers can be read in it.

host     imports torch once, and forks ranks
rooms    the namespaces of a rank; alone: what it may not do
rank     one rank of a graded run; codec: values on their way to the judge
slices   which statements of a notebook a function needs; statements: what each binds and reads
"""
