"""Wrong answers to lesson 02: at least two an exercise. Form: see `tests/mutants/__init__.py`."""

from tests.mutants import answers

MUTANTS, ALSO_RIGHT, mutant, also_right = answers()

# ---- naive-all-reduce

mutant(
    "naive-all-reduce",
    "overwrites-instead-of-adding",
    says="add what arrives, don't overwrite",
    replace=("total += arrived", "total.copy_(arrived)"),
)
mutant(
    "naive-all-reduce",
    "place-taken-for-a-rank",
    says="only the team takes part",
    cell="""
    def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        total, arrived = x.clone(), torch.empty_like(x)
        others = range(1, dist.get_world_size())
        if rank == 0:
            for other in others:
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=0)
            dist.recv(total, src=0)
        return total
    """,
)
mutant(
    "naive-all-reduce",
    "adds-in-place",
    says="must stay as it was",
    cell="""
    def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        total, arrived = x, torch.empty_like(x)
        root, others = team[0], team[1:]
        if rank == root:
            for other in others:
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=root)
            dist.recv(total, src=root)
        return total
    """,
)
mutant(
    "naive-all-reduce",
    "everybody-adds-in-its-own-order",
    says="different orders",
    cell="""
    def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        total, arrived = x.clone(), torch.empty_like(x)
        place, size = team.index(rank), len(team)
        for step in range(1, size):
            sending = dist.isend(x, dst=team[(place + step) % size])
            dist.recv(arrived, src=team[place - step])
            sending.wait()
            total += arrived
        return total
    """,
)
mutant(
    "naive-all-reduce",
    "uses-the-library",
    "traffic",
    says="your function calls all_reduce",
    cell="""
    def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total
    """,
)
mutant(
    "naive-all-reduce",
    "never-sends-back",
    says="What usually causes this here",
    replace=("dist.send(total, dst=other)", "pass"),
)
mutant(
    "naive-all-reduce",
    "alone-it-returns-its-input",
    says="shares memory with its input",
    hidden=True,
    cell="""
    def naive_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        if len(team) == 1:
            return x
        total, arrived = x.clone(), torch.empty_like(x)
        root, others = team[0], team[1:]
        if rank == root:
            for other in others:
                dist.recv(arrived, src=other)
                total += arrived
            for other in others:
                dist.send(total, dst=other)
        else:
            dist.send(x, dst=root)
            dist.recv(total, src=root)
        return total
    """,
)
mutant(
    "naive-all-reduce",
    "for-in-team-with-itself",
    says="no connection to itself",
    replace=("for other in others:\n            dist.recv", "for other in team:\n            dist.recv"),
)

# ---- tree-all-reduce

mutant(
    "tree-all-reduce",
    "passes-on-its-own-tensor",
    says="is missing",
    replace=("dist.send(total, dst=team[place - distance])", "dist.send(x, dst=team[place - distance])"),
)
mutant(
    "tree-all-reduce",
    "partner-without-end",
    says="list index out of range",
    replace=(" and place + distance < size:\n            dist.recv", ":\n            dist.recv"),
)
mutant(
    "tree-all-reduce",
    "no-partner-no-round",
    says="What usually causes this here",
    replace=(
        "elif place % (2 * distance) == 0 and place + distance < size:\n            dist.recv",
        "elif place % (2 * distance) == 0 and place + 2 * distance <= size:\n            dist.recv",
    ),
)
mutant(
    "tree-all-reduce",
    "sends-to-places-not-ranks",
    says="can't send to itself",
    replace=("dist.send(total, dst=team[place + distance])", "dist.send(total, dst=place + distance)"),
)
mutant(
    "tree-all-reduce",
    "all-to-one-rank",
    "time",
    says="what the naive way takes",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        return naive_all_reduce(x, team, rank)
    """,
)
mutant(
    "tree-all-reduce",
    "a-chain",
    "time",
    says="times as long as is needed",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, total, arrived = team.index(rank), x.clone(), torch.empty_like(x)
        if place + 1 < len(team):
            dist.recv(arrived, src=team[place + 1])
            total += arrived
        if place:
            dist.send(total, dst=team[place - 1])
            dist.recv(total, src=team[place - 1])
        if place + 1 < len(team):
            dist.send(total, dst=team[place + 1])
        return total
    """,
)
mutant(
    "tree-all-reduce",
    "both-partners-send",
    "traffic",
    says="times as many as are needed",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size, distance = team.index(rank), len(team), 1
        power = 1 << (size.bit_length() - 1)
        total, arrived = x.clone(), torch.empty_like(x)
        if place >= power:
            dist.send(total, dst=team[place - power])
            dist.recv(total, src=team[place - power])
            return total
        if place + power < size:
            dist.recv(arrived, src=team[place + power])
            total += arrived
        while distance < power:
            sent = total.clone()
            sending = dist.isend(sent, dst=team[place ^ distance])
            dist.recv(arrived, src=team[place ^ distance])
            sending.wait()
            total += arrived
            distance *= 2
        if place + power < size:
            dist.send(total, dst=team[place + power])
        return total
    """,
)
mutant(
    "tree-all-reduce",
    "near-places-first-on-the-way-down",
    "time",
    says="On the way down the largest distance comes first",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size, distance = team.index(rank), len(team), 1
        total, arrived, children = x.clone(), torch.empty_like(x), []
        while distance < size and not place & distance:
            if place + distance < size:
                children.append(team[place + distance])
                dist.recv(arrived, src=children[-1])
                total += arrived
            distance *= 2
        if place:
            dist.send(total, dst=team[place - distance])
            dist.recv(total, src=team[place - distance])
        for child in children:
            dist.send(total, dst=child)
        return total
    """,
)
mutant(
    "tree-all-reduce",
    "down-by-place-0-alone",
    "time",
    says="place 0 alone the other way",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        total, arrived = x.clone(), torch.empty_like(x)
        distance = 1
        while distance < size:
            if place % (2 * distance) == distance:
                dist.send(total, dst=team[place - distance])
            elif place % (2 * distance) == 0 and place + distance < size:
                dist.recv(arrived, src=team[place + distance])
                total += arrived
            distance *= 2
        if place:
            dist.recv(total, src=team[0])
        else:
            for other in team[1:]:
                dist.send(total, dst=other)
        return total
    """,
)
mutant(
    "tree-all-reduce",
    "shares-memory-when-alone",
    says="shares memory with its input",
    hidden=True,
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        return x if len(team) == 1 else naive_all_reduce(x, team, rank)
    """,
)
mutant(
    "tree-all-reduce",
    "adds-on-the-way-down",
    says="counted more than once",
    replace=(
        "dist.recv(total, src=team[place - distance])",
        "dist.recv(arrived, src=team[place - distance])\n            total += arrived",
    ),
)
mutant(
    "tree-all-reduce",
    "isend-to-near-children-first",
    "time",
    says="On the way down the largest distance comes first",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size, distance = team.index(rank), len(team), 1
        total, arrived, children = x.clone(), torch.empty_like(x), []
        while distance < size and not place & distance:
            if place + distance < size:
                children.append(team[place + distance])
                dist.recv(arrived, src=children[-1])
                total += arrived
            distance *= 2
        if place:
            dist.send(total, dst=team[place - distance])
            dist.recv(total, src=team[place - distance])
        for handle in [dist.isend(total, dst=child) for child in children]:
            handle.wait()
        return total
    """,
)

# ---- ring-reduce-scatter

mutant(
    "ring-reduce-scatter",
    "starts-with-its-own-chunk",
    says="which chunk a place completes depends on which one it sends first",
    cell="""
    def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        right, left = team[(place + 1) % size], team[place - 1]
        chunks = [chunk.clone() for chunk in x.tensor_split(size)]
        for step in range(size - 1):
            outgoing, incoming = (place - step) % size, (place - step - 1) % size
            arrived = torch.empty_like(chunks[incoming])
            sending = dist.isend(chunks[outgoing], dst=right)
            dist.recv(arrived, src=left)
            sending.wait()
            chunks[incoming] += arrived
        return chunks[(place + 1) % size]
    """,
)
mutant(
    "ring-reduce-scatter",
    "overwrites-instead-of-adding",
    says="are missing",
    replace=("chunks[incoming] += arrived", "chunks[incoming].copy_(arrived)"),
)
mutant(
    "ring-reduce-scatter",
    "adds-to-what-it-sends",
    says="returned",
    replace=("chunks[incoming] += arrived", "chunks[outgoing] += arrived"),
)
mutant(
    "ring-reduce-scatter",
    "receives-into-the-chunk",
    says="are missing",
    replace=(
        ("arrived = torch.empty_like(chunks[incoming])", "arrived = chunks[incoming]"),
        ("chunks[incoming] += arrived", "pass"),
    ),
)
mutant(
    "ring-reduce-scatter",
    "everybody-sends-first",
    says="Everyone sends first",
    replace=(
        "exchange(chunks[outgoing], right, arrived, left)",
        "dist.send(chunks[outgoing], dst=right)\n        dist.recv(arrived, src=left)",
    ),
)
mutant(
    "ring-reduce-scatter",
    "everybody-receives-first",
    says="in its send or in its receive",
    replace=(
        "exchange(chunks[outgoing], right, arrived, left)",
        "dist.recv(arrived, src=left)\n        dist.send(chunks[outgoing], dst=right)",
    ),
)
mutant(
    "ring-reduce-scatter",
    "in-two-turns",
    "time",
    says="send and receive at the same time",
    replace=(
        "exchange(chunks[outgoing], right, arrived, left)",
        "for turn in (0, 1):\n"
        "            if place % 2 == turn:\n"
        "                dist.send(chunks[outgoing], dst=right)\n"
        "            else:\n"
        "                dist.recv(arrived, src=left)",
    ),
)
mutant(
    "ring-reduce-scatter",
    "sends-everything",
    "traffic",
    says="times the bytes that are needed",
    cell="""
    def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        right, left = team[(place + 1) % size], team[place - 1]
        total, passing = x.clone(), x.clone()
        for step in range(size - 1):
            arrived = torch.empty_like(x)
            sending = dist.isend(passing, dst=right)
            dist.recv(arrived, src=left)
            sending.wait()
            total, passing = total + arrived, arrived
        return total.tensor_split(size)[place].clone()
    """,
)
mutant(
    "ring-reduce-scatter",
    "straight-to-everybody",
    "traffic",
    says="In a ring every message goes to the next place",
    cell="""
    def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        mine, arrived = chunks[place].clone(), torch.empty_like(chunks[place])
        for step in range(1, size):
            sending = dist.isend(chunks[(place + step) % size], dst=team[(place + step) % size])
            dist.recv(arrived, src=team[place - step])
            sending.wait()
            mine += arrived
        return mine
    """,
)
mutant(
    "ring-reduce-scatter",
    "equal-chunks",
    says="chunks differ in length",
    replace=(
        "arrived = torch.empty_like(chunks[incoming])",
        "arrived = torch.zeros(3, dtype=x.dtype)[: x.numel() // size]",
    ),
)
mutant(
    "ring-reduce-scatter",
    "chunks-are-views",
    says="must stay as it was",
    cell="""
    def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        right, left = team[(place + 1) % size], team[place - 1]
        chunks = x.tensor_split(size)
        for step in range(size - 1):
            outgoing = (place - 1 - step) % size
            incoming = (outgoing - 1) % size
            arrived = torch.empty_like(chunks[incoming])
            sending = dist.isend(chunks[outgoing], dst=right)
            dist.recv(arrived, src=left)
            sending.wait()
            chunks[incoming].add_(arrived)
        return chunks[place]
    """,
)
mutant(
    "ring-reduce-scatter",
    "forgets-the-handle",
    says="thrown away the handle",
    replace=(
        "exchange(chunks[outgoing], right, arrived, left)",
        "dist.isend(chunks[outgoing], dst=right)\n        dist.recv(arrived, src=left)",
    ),
)
mutant(
    "ring-reduce-scatter",
    "float-buffers",
    says="need the same shape and dtype",
    hidden=True,
    replace=(
        "arrived = torch.empty_like(chunks[incoming])",
        "arrived = torch.empty_like(chunks[incoming], dtype=torch.float64 if x.dtype == torch.bfloat16 else x.dtype)",
    ),
)
mutant(
    "ring-reduce-scatter",
    "other-direction",
    says="not a sum of chunk 3",
    replace=("exchange(chunks[outgoing], right, arrived, left)", "exchange(chunks[outgoing], left, arrived, right)"),
)
mutant(
    "ring-reduce-scatter",
    "sends-its-own-numbers",
    says="that the step before added to",
    replace=("exchange(chunks[outgoing], right", "exchange(x.tensor_split(size)[outgoing], right"),
)
mutant(
    "ring-reduce-scatter",
    "begins-own-in-frame",
    says="the chunk that arrives in the last step",
    replace=("(place - 1 - step) % size", "(place - step) % size"),
)

# ---- ring-all-gather

mutant(
    "ring-all-gather",
    "starts-one-off",
    says="before it is passed on",
    replace=("outgoing = (place - step) % size", "outgoing = (place - 1 - step) % size"),
)
mutant(
    "ring-all-gather",
    "adds",
    says="wrong in chunk 0, 1, 2",
    replace=(
        "exchange(chunks[outgoing], right, chunks[incoming], left)",
        "arrived = torch.empty_like(chunks[incoming])\n"
        "        exchange(chunks[outgoing], right, arrived, left)\n"
        "        chunks[incoming].zero_().add_(arrived).add_(mine[0])",
    ),
)
mutant(
    "ring-all-gather",
    "in-order-of-arrival",
    says="in order of arrival",
    cell="""
    def ring_all_gather(mine: Tensor, numel: int, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        right, left = team[(place + 1) % size], team[place - 1]
        sizes = [chunk.numel() for chunk in torch.empty(numel).tensor_split(size)]
        chunks = [mine]
        for step in range(size - 1):
            arrived = mine.new_empty(sizes[place - step - 1])
            sending = dist.isend(chunks[-1], dst=right)
            dist.recv(arrived, src=left)
            sending.wait()
            chunks.append(arrived)
        return torch.cat(chunks)
    """,
)
mutant(
    "ring-all-gather",
    "always-its-own-chunk",
    says="before it is passed on",
    replace=("exchange(chunks[outgoing], right,", "exchange(mine, right,"),
)
mutant(
    "ring-all-gather",
    "one-step-short",
    says="wrong in chunk 0",
    replace=(
        "outgoing = (place - step) % size",
        "if step == size - 2:\n            break\n        outgoing = (place - step) % size",
    ),
)
mutant(
    "ring-all-gather",
    "around-the-other-way",
    "traffic",
    says="In a ring every message goes to the next place",
    replace=(
        "outgoing = (place - step) % size\n        incoming = (outgoing - 1) % size\n"
        "        exchange(chunks[outgoing], right, chunks[incoming], left)",
        "outgoing = (place + step) % size\n        incoming = (outgoing + 1) % size\n"
        "        exchange(chunks[outgoing], left, chunks[incoming], right)",
    ),
)
mutant(
    "ring-all-gather",
    "in-two-turns",
    "time",
    says="send and receive at the same time",
    replace=(
        "exchange(chunks[outgoing], right, chunks[incoming], left)",
        "for turn in (0, 1):\n"
        "            if place % 2 == turn:\n"
        "                dist.send(chunks[outgoing], dst=right)\n"
        "            else:\n"
        "                dist.recv(chunks[incoming], src=left)",
    ),
)
mutant(
    "ring-all-gather",
    "four-steps-at-most",
    says="wrong in chunk",
    hidden=True,
    replace=(
        "outgoing = (place - step) % size",
        "if step > 2:\n            break\n        outgoing = (place - step) % size",
    ),
)

# ---- ring-all-reduce

mutant(
    "ring-all-reduce",
    "forgets-the-second-half",
    says="the all-gather is missing",
    body="""
    mine = reduce_scatter(x, team, rank)
    total = mine
    """,
)
mutant(
    "ring-all-reduce",
    "gathers-its-own-numbers",
    says="are missing",
    body="""
    mine = x.tensor_split(len(team))[team.index(rank)]
    total = all_gather(mine, x.numel(), team, rank)
    """,
)
mutant(
    "ring-all-reduce",
    "takes-chunks-for-equal",
    says="What usually causes this here",
    replace=("all_gather(mine, x.numel(), team, rank)", "all_gather(mine, mine.numel() * len(team), team, rank)"),
)
mutant(
    "ring-all-reduce",
    "the-whole-world",
    says="only the team takes part",
    body="""
    total = x.clone()
    dist.all_reduce(total)
    """,
)
mutant(
    "ring-all-reduce",
    "through-place-0",
    "time",
    says="what the naive way takes",
    body="total = naive_all_reduce(x, team, rank)",
)
mutant(
    "ring-all-reduce",
    "a-tree-instead",
    "traffic",
    says="not the algorithm that the exercise asks for",
    body="total = tree_all_reduce(x, team, rank)",
)
mutant(
    "ring-all-reduce",
    "averages",
    says="the mean",
    replace=(
        "total = all_gather(mine, x.numel(), team, rank)",
        "total = all_gather(mine, x.numel(), team, rank) / len(team)",
    ),
)
mutant(
    "ring-all-reduce",
    "other-order",
    says="counted more than once",
    body="""
    mine = all_gather(x, x.numel() * len(team), team, rank)
    total = reduce_scatter(mine, team, rank)
    """,
)

# ---- halving-doubling

mutant(
    "halving-doubling",
    "both-keep-the-lower-half",
    says="different positions were added up",
    replace=("(upper, lower) if place & distance else (lower, upper)", "(lower, upper)"),
)
mutant(
    "halving-doubling",
    "sends-what-it-keeps",
    says="different positions were added up",
    replace=("exchange(give, partner, arrived, partner)", "exchange(keep, partner, arrived, partner)"),
)
mutant(
    "halving-doubling",
    "plus-instead-of-exclusive-or",
    says="do not name each other as partners",
    replace=("team[place ^ distance]", "team[(place + distance) % len(team)]"),
)
mutant(
    "halving-doubling",
    "overwrites",
    says="are missing",
    replace=("keep += arrived", "keep.copy_(arrived)"),
)
mutant(
    "halving-doubling",
    "receives-into-what-it-keeps",
    says="returned",
    replace=("exchange(keep, partner, give, partner)", "exchange(give, partner, keep, partner)"),
)
mutant(
    "halving-doubling",
    "whole-tensors",
    "traffic",
    says="times the bytes that are needed",
    cell="""
    def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, distance, total = team.index(rank), len(team) // 2, x.clone()
        while distance:
            arrived, partner = torch.empty_like(x), team[place ^ distance]
            exchange(total, partner, arrived, partner)
            total += arrived
            exchange(total, partner, arrived, partner)
            distance //= 2
        return total
    """,
)
mutant(
    "halving-doubling",
    "recursive-doubling",
    "traffic",
    says="not the algorithm that the exercise asks for",
    cell="""
    def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, distance, total = team.index(rank), 1, x.clone()
        while distance < len(team):
            arrived, partner = torch.empty_like(x), team[place ^ distance]
            exchange(total, partner, arrived, partner)
            total += arrived
            distance *= 2
        return total
    """,
)
mutant(
    "halving-doubling",
    "a-ring",
    "traffic",
    says="1.5 times the messages",
    cell="""
    def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
        return ring_all_reduce(x, team, rank)
    """,
)
mutant(
    "halving-doubling",
    "in-two-turns",
    "time",
    says="send and receive at the same time",
    replace=(
        (
            "exchange(give, partner, arrived, partner)",
            "dist.send(give, dst=partner) if place & distance else None\n"
            "        dist.recv(arrived, src=partner)\n"
            "        None if place & distance else dist.send(give, dst=partner)",
        ),
        (
            "exchange(keep, partner, give, partner)",
            "dist.send(keep, dst=partner) if rank > partner else None\n"
            "        dist.recv(give, src=partner)\n"
            "        None if rank > partner else dist.send(keep, dst=partner)",
        ),
    ),
)
mutant(
    "halving-doubling",
    "equal-halves-only",
    says="at index 3, rank 0 is missing",
    replace=(
        "arrived = torch.empty_like(keep)",
        "equal = part.numel() // 2\n"
        "        arrived = torch.zeros_like(keep)[:equal]\n"
        "        keep, give = keep[:equal], give[:equal]",
    ),
)
mutant(
    "halving-doubling",
    "four-places-at-most",
    says="rank 7 of the team",
    hidden=True,
    replace=("keep += arrived", "keep += arrived if distance < 4 else 0 * arrived"),
)
mutant(
    "halving-doubling",
    "keep-rebound",
    says="are missing",
    replace=("keep += arrived", "keep = keep + arrived"),
)
mutant(
    "halving-doubling",
    "places-for-ranks",
    says="no connection to itself",
    replace=("team[place ^ distance]", "place ^ distance"),
)

# ---- halving-doubling-any-size

mutant(
    "halving-doubling-any-size",
    "does-not-fold",
    says="was called for a team of 3",
    cell="""
    def halving_doubling_any_size(x: Tensor, team: list[int], rank: int, all_reduce=halving_doubling) -> Tensor:
        return all_reduce(x, team, rank)
    """,
)
mutant(
    "halving-doubling-any-size",
    "forgets-to-add",
    says="rank 2 is missing",
    replace=("total += arrived", "pass"),
)
mutant(
    "halving-doubling-any-size",
    "sends-back-its-own-sum",
    says="is missing",
    replace=(
        ("total = all_reduce(total,", "subtotal, total = total, all_reduce(total,"),
        ("dist.send(total, dst=team[place + power])", "dist.send(subtotal, dst=team[place + power])"),
    ),
)
mutant(
    "halving-doubling-any-size",
    "extra-ranks-never-wait",
    says="What usually causes this here",
    replace=("dist.recv(total, src=team[place - power])", "pass"),
)
mutant(
    "halving-doubling-any-size",
    "all-extras-to-place-0",
    "time",
    says="the time of a queue",
    cell="""
    def halving_doubling_any_size(x: Tensor, team: list[int], rank: int, all_reduce=halving_doubling) -> Tensor:
        place, size = team.index(rank), len(team)
        power = 2 ** (size.bit_length() - 1)
        total = x.clone()
        if place >= power:
            dist.send(x, dst=team[0])
            dist.recv(total, src=team[0])
            return total
        for other in team[power:] if place == 0 else []:
            arrived = torch.empty_like(x)
            dist.recv(arrived, src=other)
            total += arrived
        total = all_reduce(total, team[:power], rank)
        for other in team[power:] if place == 0 else []:
            dist.send(total, dst=other)
        return total
    """,
)
mutant(
    "halving-doubling-any-size",
    "sends-the-result-twice",
    says="which has finished without receiving it",
    replace=(
        "dist.send(total, dst=team[place + power])",
        "dist.send(total, dst=team[place + power])\n            dist.send(total, dst=team[place + power])",
    ),
)
mutant(
    "halving-doubling-any-size",
    "throws-result-away",
    says="is missing",
    replace=("total = all_reduce(total", "all_reduce(total"),
)

# ---- hierarchical-all-reduce

mutant(
    "hierarchical-all-reduce",
    "neighbours-across",
    says="but is not in it",
    replace=("team[seat::local]", "team[node::local]"),
)
mutant(
    "hierarchical-all-reduce",
    "inside-only",
    says="are missing",
    replace=("mine = all_reduce(mine, across, rank)", "pass"),
)
mutant(
    "hierarchical-all-reduce",
    "ranks-for-places",
    says="but is not in it",
    replace=("team[node * local : (node + 1) * local]", "list(range(node * local, (node + 1) * local))"),
)
mutant(
    "hierarchical-all-reduce",
    "everything-across",
    "traffic",
    says="First reduce-scatter inside the node",
    body="""
    inside = team[node * local : (node + 1) * local]
    across = team[seat::local]
    total = all_reduce(all_reduce(x, inside, rank), across, rank)
    """,
)
mutant(
    "hierarchical-all-reduce",
    "a-flat-ring",
    "time",
    says="what a flat ring takes",
    body="total = ring_all_reduce(x, team, rank)",
)
mutant(
    "hierarchical-all-reduce",
    "one-leader-a-node",
    "time",
    says="times as long as is needed",
    body="""
    inside = team[node * local : (node + 1) * local]
    total = tree_all_reduce(x, inside, rank)
    if seat == 0:
        total = all_reduce(total, team[::local], rank)
    total = tree_all_reduce(total if seat == 0 else torch.zeros_like(x), inside, rank)
    """,
)
mutant(
    "hierarchical-all-reduce",
    "gathers-across",
    says="elements as chunk",
    replace=("all_gather(mine, x.numel(), inside, rank)", "all_gather(mine, x.numel(), across, rank)"),
)
mutant(
    "hierarchical-all-reduce",
    "levels-swapped",
    "traffic",
    says="First reduce-scatter inside the node",
    body="""
    inside = team[node * local : (node + 1) * local]
    across = team[seat::local]
    mine = reduce_scatter(x, across, rank)
    mine = all_reduce(mine, inside, rank)
    total = all_gather(mine, x.numel(), across, rank)
    """,
)

# ---- pairwise-all-to-all

mutant(
    "pairwise-all-to-all",
    "same-way-both-times",
    says="What usually causes this here",
    replace=("(place - step) % size", "(place + step) % size"),
)
mutant(
    "pairwise-all-to-all",
    "in-order-of-arrival",
    says="in order of arrival",
    replace=(
        "exchange(chunks[target], team[target], received[source], team[source])",
        "arrived = torch.empty_like(chunks[place])\n"
        "        exchange(chunks[target], team[target], arrived, team[source])\n"
        "        received = [chunks[place], *received[1:step], arrived, *received[step + 1 :]]",
    ),
)
mutant(
    "pairwise-all-to-all",
    "sends-its-own-chunk",
    says="the chunks that the others keep",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [torch.empty_like(chunk) for chunk in chunks]
        received[place].copy_(chunks[place])
        for step in range(1, size):
            target, source = (place + step) % size, (place - step) % size
            exchange(chunks[place], team[target], received[source], team[source])
        return torch.cat(received)
    """,
)
mutant(
    "pairwise-all-to-all",
    "everybody-to-place-0-first",
    "time",
    says="so that none has to queue",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [torch.empty_like(chunks[place]) for _ in team]
        received[place].copy_(chunks[place])
        for target in range(size):
            if target != place:
                dist.send(chunks[target], dst=team[target])
                continue
            for source in range(size):
                if source != place:
                    dist.recv(received[source], src=team[source])
        return torch.cat(received)
    """,
)
mutant(
    "pairwise-all-to-all",
    "whole-tensors",
    "traffic",
    says="times the bytes that are needed",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        received, arrived = [x.tensor_split(size)[place]] * size, torch.empty_like(x)
        for step in range(1, size):
            target, source = (place + step) % size, (place - step) % size
            exchange(x, team[target], arrived, team[source])
            received[source] = arrived.tensor_split(size)[place].clone()
        return torch.cat(received)
    """,
)
mutant(
    "pairwise-all-to-all",
    "backwards-above-four",
    says="in order of arrival",
    hidden=True,
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [torch.empty_like(chunks[place]) for _ in team]
        received[place].copy_(chunks[place])
        for step in range(1, size):
            target = place ^ step if size in (2, 4, 8) else (place + step) % size
            source = place ^ step if size in (2, 4, 8) else (place - step) % size
            exchange(chunks[target], team[target], received[source if size < 5 else target], team[source])
        return torch.cat(received)
    """,
)
mutant(
    "pairwise-all-to-all",
    "all-at-once-in-rank-order",
    "time",
    says="so that none has to queue",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [chunks[place].clone() for _ in team]
        handles = [dist.irecv(received[p], src=team[p]) for p in range(size) if p != place]
        handles += [dist.isend(chunks[p].clone(), dst=team[p]) for p in range(size) if p != place]
        for handle in handles:
            handle.wait()
        return torch.cat(received)
    """,
)

# ---- all-reduce-seconds

mutant(
    "all-reduce-seconds",
    "one-way",
    says="count the way up and the way down",
    replace=("return 2 * (size - 1) * whole", "return (size - 1) * whole"),
)
mutant(
    "all-reduce-seconds",
    "tree-not-rounded",
    says="a tree has a whole number of rounds",
    replace=("(size - 1).bit_length() * whole", "math.log2(size) * whole"),
)
mutant(
    "all-reduce-seconds",
    "tree-rounded-down",
    says="the last ranks need a round too",
    replace=("(size - 1).bit_length() * whole", "int(math.log2(size)) * whole"),
)
mutant(
    "all-reduce-seconds",
    "ring-of-whole-tensors",
    says="a ring sends n / P",
    replace=("(alpha + nbytes / size / bandwidth)", "(alpha + nbytes / bandwidth)"),
)
mutant(
    "all-reduce-seconds",
    "no-fold",
    says="`fold` belongs to it",
    replace=("return fold + 2", "return 2"),
)
mutant(
    "all-reduce-seconds",
    "parts-of-all-ranks",
    says="all_reduce_seconds('halving-doubling'",
    replace=("(power - 1) / power * nbytes", "(size - 1) / size * nbytes"),
)
mutant(
    "all-reduce-seconds",
    "tree-bit-length-of-size",
    says="one round too many",
    replace=("(size - 1).bit_length()", "size.bit_length()"),
)
mutant(
    "all-reduce-seconds",
    "ring-no-alpha-per-step",
    says="each round begins with one",
    replace=(
        "2 * (size - 1) * (alpha + nbytes / size / bandwidth)",
        "alpha + 2 * (size - 1) * nbytes / size / bandwidth",
    ),
)
mutant(
    "all-reduce-seconds",
    "hd-one-latency",
    says="there are 2 log2 P' rounds",
    replace=("2 * math.log2(power) * alpha", "math.log2(power) * alpha"),
)
mutant(
    "all-reduce-seconds",
    "hd-whole-each-round",
    says="halves, quarters, ... are sent",
    replace=("2 * (power - 1) / power * nbytes / bandwidth", "2 * math.log2(power) * nbytes / bandwidth"),
)
mutant(
    "all-reduce-seconds",
    "hd-log-of-size",
    says="only P' ranks are left",
    replace=("math.log2(power)", "math.log2(size)"),
)

# ---- crossover

mutant(
    "crossover",
    "upside-down",
    says="upside down",
    replace=("more_rounds / fewer_bytes *", "(fewer_bytes / more_rounds if more_rounds else 0) *"),
)
mutant(
    "crossover",
    "forgets-alpha-and-bandwidth",
    says="without alpha times bandwidth",
    replace=(" * alpha * bandwidth", ""),
)
mutant(
    "crossover",
    "divides-by-bandwidth",
    says="crossover(size=4",
    replace=("alpha * bandwidth", "alpha / bandwidth"),
)
mutant(
    "crossover",
    "ring-sends-everything-once",
    says="ZeroDivisionError",
    replace=("rounds - (size - 1) / size", "rounds - 1"),
)
mutant(
    "crossover",
    "log2-not-rounded",
    says="if it is not rounded up",
    body="""
    rounds = math.log2(size)
    more_rounds = (size - 1) - rounds
    fewer_bytes = rounds - (size - 1) / size
    return more_rounds / fewer_bytes * alpha * bandwidth
    """,
)
mutant(
    "crossover",
    "rounded",
    says="the right number, rounded",
    body="""
    return round(((size - 1) - rounds) / (rounds - (size - 1) / size) * alpha * bandwidth)
    """,
)

# ---- choose-algorithm

mutant(
    "choose-algorithm",
    "the-slowest",
    says="the least time wins",
    replace=("return min(", "return max("),
)
mutant(
    "choose-algorithm",
    "a-fixed-threshold",
    says="you chose",
    body='return "tree" if nbytes < 100_000 else "ring"',
)
mutant(
    "choose-algorithm",
    "ignores-the-candidates",
    says="you chose 'halving-doubling'",
    replace=("min(candidates,", 'min(("naive", "tree", "ring", "halving-doubling"),'),
)
mutant(
    "choose-algorithm",
    "the-last-of-equals",
    says="not the first of them",
    replace=("min(candidates,", "min(reversed(candidates),"),
)
mutant(
    "choose-algorithm",
    "its-own-formulas",
    says="you chose",
    hidden=True,
    replace=("seconds(name,", "all_reduce_seconds(name,"),
)
mutant(
    "choose-algorithm",
    "returns-pair",
    says="not one of the candidates",
    body="return min((seconds(name, size, nbytes, alpha, bandwidth), name) for name in candidates)",
)
mutant(
    "choose-algorithm",
    "alphabetical-ties",
    says="not the first of them",
    hidden=True,
    body="return min((seconds(name, size, nbytes, alpha, bandwidth), name) for name in candidates)[1]",
)

# ---- all-reduce

mutant(
    "all-reduce",
    "counts-elements",
    "traffic",
    says="Did you hand `choose` the number of elements",
    replace=("flat.numel() * flat.element_size()", "flat.numel()"),
)
mutant(
    "all-reduce",
    "takes-four-bytes-for-granted",
    "traffic",
    says="Did you hand `choose` the number of elements",
    hidden=True,
    replace=("flat.numel() * flat.element_size()", "4 * flat.numel()"),
)
mutant(
    "all-reduce",
    "forgets-the-shape",
    says="restore the shape",
    replace=("return total.reshape(x.shape)", "return total"),
)
mutant(
    "all-reduce",
    "hands-in-the-view",
    says="flatten x, without gaps",
    replace=("flat = x.reshape(-1).contiguous()", "flat = x"),
)
mutant(
    "all-reduce",
    "flattens-in-memory-order",
    says="flatten by reshape(-1)",
    replace=("flat = x.reshape(-1).contiguous()", "flat = (x if x.is_contiguous() else x.T).reshape(-1).contiguous()"),
)
mutant(
    "all-reduce",
    "world-instead-of-team",
    says="the team has 2 ranks",
    replace=("len(team), alpha", "dist.get_world_size(), alpha"),
)
mutant(
    "all-reduce",
    "strided-slices-stay",
    says="flatten x, without gaps",
    hidden=True,
    replace=("flat = x.reshape(-1).contiguous()", "flat = x if x.dim() == 1 else x.reshape(-1)"),
)
mutant(
    "all-reduce",
    "storage-bytes",
    "traffic",
    says="for each element of x",
    hidden=True,
    replace=("flat.numel() * flat.element_size()", "x.untyped_storage().nbytes()"),
)

# ---- right answers in another form

also_right(
    "naive-all-reduce",
    "from-whoever-comes",
    replace=(
        ("dist.recv(arrived, src=other)", "dist.recv(arrived)"),
        (
            "        for other in others:\n            dist.send(total, dst=other)",
            "        for handle in [dist.isend(total, dst=other) for other in others]:\n            handle.wait()",
        ),
    ),
)
also_right(
    "tree-all-reduce",
    "largest-distance-first",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        total, arrived = x.clone(), torch.empty_like(x)
        distances = [2**level for level in range((size - 1).bit_length())]
        for distance in reversed(distances):
            if distance <= place < 2 * distance:
                dist.send(total, dst=team[place - distance])
            elif place < distance and place + distance < size:
                dist.recv(arrived, src=team[place + distance])
                total += arrived
        for distance in distances:
            if distance <= place < 2 * distance:
                dist.recv(total, src=team[place - distance])
            elif place < distance and place + distance < size:
                dist.send(total, dst=team[place + distance])
        return total
    """,
)
also_right(
    "tree-all-reduce",
    "recursively",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        total, arrived = x.clone(), torch.empty_like(x)
        if len(team) == 1:
            return total
        place = team.index(rank)
        if place % 2:
            dist.isend(total, dst=team[place - 1]).wait()
            dist.irecv(total, src=team[place - 1]).wait()
            return total
        has_child = place + 1 < len(team)
        if has_child:
            dist.recv(arrived, src=team[place + 1])
            total = total + arrived
        total = tree_all_reduce(total, team[::2], rank)
        if has_child:
            dist.send(total, dst=team[place + 1])
        return total
    """,
)
also_right(
    "ring-reduce-scatter",
    "a-batch-in-each-step",
    replace=(
        (
            "exchange(chunks[outgoing], right, arrived, left)",
            "calls = [dist.P2POp(dist.irecv, arrived, left), dist.P2POp(dist.isend, chunks[outgoing], right)]\n"
            "        for work in dist.batch_isend_irecv(calls):\n            work.wait()",
        ),
        ("chunks[incoming] += arrived", "chunks[incoming] = arrived + chunks[incoming]"),
    ),
)
also_right(
    "ring-reduce-scatter",
    "one-running-sum",
    cell="""
    def ring_reduce_scatter(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        running = chunks[place - 1].clone()
        for step in range(size - 1):
            arrived = torch.empty_like(chunks[place - step - 2])
            receiving = dist.irecv(arrived, src=team[place - 1])
            dist.isend(running, dst=team[(place + 1) % size]).wait()
            receiving.wait()
            running = arrived + chunks[place - step - 2]
        return running
    """,
)
also_right(
    "ring-all-gather",
    "passes-on-what-came",
    cell="""
    def ring_all_gather(mine: Tensor, numel: int, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        sizes = [chunk.numel() for chunk in torch.empty(numel).tensor_split(size)]
        rows, passing = [None] * size, mine.clone()
        rows[place] = passing
        for source in [(place - step) % size for step in range(1, size)]:
            arrived = mine.new_empty(sizes[source])
            receiving = dist.irecv(arrived, src=team[place - 1])
            dist.send(passing, dst=team[(place + 1) % size])
            receiving.wait()
            rows[source] = passing = arrived
        return torch.cat(rows)
    """,
)
also_right(
    "ring-all-reduce",
    "in-one-line",
    body="total = all_gather(reduce_scatter(x.clone(), team, rank), len(x), list(team), rank)",
)
also_right(
    "halving-doubling",
    "smallest-distance-first",
    cell="""
    def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, distance, total = team.index(rank), 1, x.clone()
        part, rounds = total, []
        while distance < len(team):
            halves, bit = part.tensor_split(2), bool(place & distance)
            keep, give, partner = halves[bit], halves[not bit], team[place ^ distance]
            arrived = torch.empty_like(keep)
            receiving = dist.irecv(arrived, src=partner)
            dist.send(give, dst=partner)
            receiving.wait()
            keep.copy_(keep + arrived)
            rounds.append((partner, keep, give))
            part, distance = keep, 2 * distance
        while rounds:
            partner, keep, give = rounds.pop()
            receiving = dist.irecv(give, src=partner)
            dist.send(keep, dst=partner)
            receiving.wait()
        return total
    """,
)
also_right(
    "halving-doubling",
    "upper-half-first",
    replace=(
        "(upper, lower) if place & distance else (lower, upper)",
        "(lower, upper) if place & distance else (upper, lower)",
    ),
)
also_right(
    "halving-doubling-any-size",
    "partners-from-the-end",
    cell="""
    def halving_doubling_any_size(x: Tensor, team: list[int], rank: int, all_reduce=halving_doubling) -> Tensor:
        size, power = len(team), 1
        while 2 * power <= size:
            power *= 2
        core, extras = team[:power], team[power:]
        if rank in extras:
            total, partner = torch.empty_like(x), core[-1 - extras.index(rank)]
            dist.send(x, dst=partner)
            dist.recv(total, src=partner)
            return total
        mine = core[::-1].index(rank)
        if mine >= len(extras):
            return all_reduce(x, core, rank)
        arrived = torch.empty_like(x)
        dist.recv(arrived, src=extras[mine])
        total = all_reduce(x + arrived, core, rank)
        dist.send(total, dst=extras[mine])
        return total
    """,
)
also_right(
    "hierarchical-all-reduce",
    "teams-by-comprehension",
    body="""
    inside = [other for other in team if team.index(other) // local == node]
    across = [other for other in team if team.index(other) % local == seat]
    mine = all_reduce(reduce_scatter(x, inside, rank), across, rank)
    total = all_gather(mine, len(x), inside, rank)
    """,
)
also_right(
    "pairwise-all-to-all",
    "backwards",
    replace=(
        "target, source = (place + step) % size, (place - step) % size",
        "target, source = (place - step) % size, (place + step) % size",
    ),
)
also_right(
    "pairwise-all-to-all",
    "receives-started-at-once",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [chunks[place].clone() for _ in team]
        receives = [dist.irecv(received[place - step], src=team[place - step]) for step in range(1, size)]
        for step in range(1, size):
            dist.send(chunks[(place + step) % size].clone(), dst=team[(place + step) % size])
        for receive in receives:
            receive.wait()
        return torch.cat(received)
    """,
)
also_right(
    "all-reduce-seconds",
    "by-other-words",
    replace=(
        ("2 * (size - 1).bit_length() * whole", "2 * math.ceil(math.log2(size)) * whole"),
        ("2 * (power - 1) / power * nbytes / bandwidth", "2 * (1 - 1 / power) * nbytes / bandwidth"),
    ),
)
also_right(
    "crossover",
    "from-the-two-lines",
    body="return (2 * (size - 1) - 2 * rounds) * alpha / ((2 * rounds - 2 * (size - 1) / size) / bandwidth)",
)
also_right(
    "choose-algorithm",
    "a-loop",
    body="""
    best = candidates[0]
    for name in candidates:
        if seconds(name, size, nbytes, alpha, bandwidth) < seconds(best, size, nbytes, alpha, bandwidth):
            best = name
    return best
    """,
)
also_right(
    "all-reduce",
    "a-copy-first",
    body="""
    flat = x.clone().flatten().contiguous()
    function = algorithms[choose(nbytes=x.nbytes, size=len(team), alpha=alpha, bandwidth=bandwidth)]
    return function(flat, team, rank).view(x.shape)
    """,
)
also_right(
    "tree-all-reduce",
    "all-children-at-once",
    cell="""
    def tree_all_reduce(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size, distance = team.index(rank), len(team), 1
        total, children = x.clone(), []
        while distance < size and not place & distance:
            if place + distance < size:
                children.append(team[place + distance])
            distance *= 2
        parts = [torch.empty_like(x) for _ in children]
        for handle in [dist.irecv(part, src=child) for part, child in zip(parts, children)]:
            handle.wait()
        for part in parts:
            total += part
        if place:
            dist.send(total, dst=team[place & (place - 1)])
            dist.recv(total, src=team[place & (place - 1)])
        for child in reversed(children):
            dist.isend(total, dst=child).wait()
        return total
    """,
)
also_right(
    "halving-doubling",
    "recursive",
    cell="""
    def halving_doubling(x: Tensor, team: list[int], rank: int) -> Tensor:
        if len(team) == 1:
            return x.clone()
        place, half = team.index(rank), len(team) // 2
        bit, partner = place // half, team[(place + half) % len(team)]
        parts = x.tensor_split(2)
        arrived = torch.empty_like(parts[bit])
        exchange(parts[1 - bit], partner, arrived, partner)
        mine = halving_doubling(parts[bit] + arrived, team[bit * half : (bit + 1) * half], rank)
        other = torch.empty_like(parts[1 - bit])
        exchange(mine, partner, other, partner)
        return torch.cat([mine, other] if bit == 0 else [other, mine])
    """,
)
also_right(
    "halving-doubling-any-size",
    "mpich-pairs",
    cell="""
    def halving_doubling_any_size(x: Tensor, team: list[int], rank: int, all_reduce=halving_doubling) -> Tensor:
        place, size = team.index(rank), len(team)
        power = 1 << (size.bit_length() - 1)
        extra = size - power
        core = team[: 2 * extra : 2] + team[2 * extra :]
        total = x.clone()
        if place < 2 * extra and place % 2:
            dist.send(total, team[place - 1])
            dist.recv(total, team[place - 1])
            return total
        if place < 2 * extra:
            arrived = torch.empty_like(x)
            dist.recv(arrived, team[place + 1])
            total += arrived
        total = all_reduce(x=total, team=core, rank=rank)
        if place < 2 * extra:
            dist.send(total, team[place + 1])
        return total
    """,
)
also_right(
    "pairwise-all-to-all",
    "exclusive-or",
    cell="""
    def pairwise_all_to_all(x: Tensor, team: list[int], rank: int) -> Tensor:
        place, size = team.index(rank), len(team)
        chunks = x.tensor_split(size)
        received = [torch.empty_like(chunks[place]) for _ in team]
        received[place].copy_(chunks[place])
        for step in range(1, size):
            to, source = (place ^ step,) * 2 if size & (size - 1) == 0 else ((place + step) % size, place - step)
            exchange(chunks[to], team[to], received[source], team[source])
        return torch.cat(received)
    """,
)
also_right(
    "crossover",
    "bisection",
    body="""
    low, high = 0.0, 1e15
    for _ in range(200):
        middle = (low + high) / 2
        tree = rounds * (alpha + middle / bandwidth)
        ring = (size - 1) * (alpha + middle / size / bandwidth)
        low, high = (middle, high) if tree <= ring else (low, middle)
    return low
    """,
)
also_right(
    "all-reduce",
    "early-return",
    body="""
    if len(team) == 1:
        return x.clone()
    flat = x.contiguous().view(-1)
    name = choose(nbytes=x.numel() * x.element_size(), size=len(team), alpha=alpha, bandwidth=bandwidth)
    total = algorithms[name](x=flat, team=team, rank=rank)
    return total.unflatten(0, x.shape) if x.dim() else total[0]
    """,
)
