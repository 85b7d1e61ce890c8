"""What runs inside the sandbox of a submission. It holds no secrets: the answers can't be read from it.

host         imports torch once, warms up (warm_up) and forks ranks
namespaces   a rank's own namespaces; privileges: how it gives up everything else
rank         one rank of a graded run; orders: what the judge asks of it; codec: values on their way to the judge
slices       which statements of a notebook a function needs; statements: what each of them binds and reads
"""
