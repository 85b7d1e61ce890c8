"""In which order a stage works on its chunks and microbatches: 1F1B, interleaved if a stage has several chunks."""

from __future__ import annotations

from functools import lru_cache

Task = tuple[bool, int, int]  # (whether it is a backward, chunk, microbatch)


def schedule(stage: int, stages: int, microbatches: int, chunks: int) -> list[Task]:
    """The interleaved 1F1B schedule: arXiv 2104.04473, section 2.2. Microbatches go in groups of `stages`."""
    total = microbatches * chunks
    ahead = min(total, (stages - stage - 1) * (2 if chunks > 1 else 1) + (chunks - 1) * stages)

    def task(number: int, back: bool) -> Task:
        if chunks == 1:
            return back, 0, number
        group, place = divmod(number, stages * chunks)
        chunk, inside = divmod(place, stages)
        return back, chunks - 1 - chunk if back else chunk, group * stages + inside

    forwards, backwards = ([task(number, back) for number in range(total)] for back in (False, True))
    steady = [both for pair in zip(forwards[ahead:], backwards, strict=False) for both in pair]
    return forwards[:ahead] + steady + backwards[total - ahead :]


@lru_cache(maxsize=65536)
def most_alive(stage: int, stages: int, microbatches: int, layers: tuple[int, ...]) -> int:
    """The most layers of which a stage keeps activations at once. layers: of each of its chunks."""
    alive = most = 0
    for back, chunk, _ in schedule(stage, stages, min(microbatches, 3 * stages), len(layers)):  # it repeats itself
        alive += -layers[chunk] if back else layers[chunk]
        most = max(most, alive)
    return most
