"""What the dumps of a job say, in the words of a deadlock's report: who waits where, who never came, and why.

Dumps are torch's, or those of `watch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...diagnosis.deadlock import deadlock_report, describe_ranks
from ...diagnosis.words import call_text, ordinal, ranks_text
from ...events.collectives import POINT_TO_POINT
from ...events.event import Event
from ...events.matching import Matching
from ...events.rank_state import RankState
from ...text.source_lines import place
from .read import BadDump, read_folder
from .states import check, listed, states_of, unknown_calls

MOST_NAMES = 8

NO_MORE = (
    '"Has finished" means here that the dump holds no call of the rank that had not ended: the rank may have exited, '
    "raised an exception, or been at work elsewhere."
)
ALL_ALIKE = (
    "All of them made the same calls, so what they wait for is a rank without a dump. It is the one to look at: its "
    "log ends with an error, or it hangs where it calls no collective."
)
NOBODY_ELSE = (
    "All of them made the same calls. In a group other than the whole world, a rank that never called anything may be "
    "what they wait for: Gloo's dumps don't say who is in a group."
)
LIVE = """\
To have a job leave dumps, set these before it starts, on every machine:

  export TORCH_FR_BUFFER_SIZE=20000             # calls that each rank remembers; 2000 by default, and 0 is off
  export TORCH_FR_DUMP_TEMP_FILE=/shared/job/rank_   # where; each rank appends its number. Make the folder first
  export TORCH_NCCL_DUMP_ON_TIMEOUT=1           # NCCL: write when a collective has run into its time-out
  export TORCH_INCLUDE_STACK_TRACE=1            # with the lines that made the calls

A group's time-out is that of init_process_group(timeout=...), 10 minutes with NCCL. Gloo records as well, but writes
nothing by itself. For a dump at any moment, from either, put this into the script and send SIGUSR2 to the ranks:

  import os, signal, torch

  def dump(*_):
      with open(f"/shared/job/rank_{os.environ['RANK']}", "wb") as file:
          file.write(torch._C._distributed_c10d._dump_fr_trace())

  signal.signal(signal.SIGUSR2, dump)

Python runs it once the call that the rank is in has returned. If none returns, have a thread that was started early
do the same. Then: explain /shared/job
"""


def explain(folder: Path) -> str:
    """The report on the dumps in this folder, one file per rank. Raises BadDump if there are none."""
    dumps, problems = read_folder(folder)
    for rank, dump in list(dumps.items()):
        try:
            check(dump)
        except Exception as error:
            problems.append(f"rank {rank}'s dump can't be understood ({type(error).__name__}: {error})")
            del dumps[rank]
    if not dumps:
        raise BadDump("\n".join(problems))
    try:
        return explain_dumps(dumps, problems)
    except Exception as error:  # dumps that don't belong together, say
        raise BadDump(f"the dumps in {folder} can't be understood: {type(error).__name__}: {error}") from error


def explain_dumps(dumps: dict[int, dict[str, Any]], problems: list[str]) -> str:
    missing = sorted(all_ranks(dumps) - dumps.keys())
    states = list(states_of(dumps).values())
    parts = [f"{len(dumps)} dump{'s' * (len(dumps) != 1)}, of {ranks_text(sorted(dumps)).lower()}."]
    if missing:
        parts[0] += f" {ranks_text(missing)} left none."
    if problems:
        parts.append("\n".join(f"Not read: {problem}." for problem in problems))
    if unknown := sorted({name for dump in dumps.values() for name in unknown_calls(dump)}):
        parts.append(f"Left out, since nothing is known of such calls: {', '.join(unknown[:MOST_NAMES])}.")
    parts.append(report(states, missing))
    if "The ranks parted" not in parts[-1] and (parted := first_parting(states)):
        parts.append(parted)
    if any(state.finished for state in states) and not any("watch" in dump for dump in dumps.values()):
        parts.append(NO_MORE)
    return "\n\n".join(parts)


def report(states: list[RankState], missing: list[int]) -> str:
    if all(state.finished for state in states):
        return f"No call was under way when these dumps were written.{f' {ALL_ALIKE}' * bool(missing)}"
    said = deadlock_report(states)
    if said is not None:
        return said
    lines = ["  " + line for line in describe_ranks(states)]
    return "\n".join([*lines, "", ALL_ALIKE if missing else NOBODY_ELSE])


def all_ranks(dumps: dict[int, dict[str, Any]]) -> set[int]:
    """The ranks of the job, as far as the groups in its dumps name them."""
    found: set[int] = set()
    for dump in dumps.values():
        for group in (dump.get("pg_config") or {}).values():
            found |= set(listed(group))
    return found


def first_parting(states: list[RankState]) -> str:
    """Where ranks first made the same call of a group from different lines; "" if they never did, or only at last.

    The call at which they wait may come much later: until then, they met the wrong partners.
    """
    matching, first = Matching(states), states[0]
    collectives = [event for event in first.events if event.op not in POINT_TO_POINT]
    for number, event in enumerate(collectives[:-1]):
        calls = [call for call in matching.partners(event).values() if call is not None and call.where]
        if len({call.where for call in calls}) > 1:
            beginning = f"Before that, at the {ordinal(number + 1)} collective in rank {first.rank}'s dump, their lines"
            return "\n".join([f"{beginning} parted for the first time:", *parted_lines(calls)])
    return ""


def parted_lines(calls: list[Event]) -> list[str]:
    ranks: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        ranks.setdefault((call_text(call), call.where), []).append(call.rank)
    return [f"  {ranks_text(same).lower()}  {called:<26}  {place(where)}" for (called, where), same in ranks.items()]
